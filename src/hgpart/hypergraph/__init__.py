"""ChannelGraph + Work -> CnnHypergraph, and the figures of its partitions."""
