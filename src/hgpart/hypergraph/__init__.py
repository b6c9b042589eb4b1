"""ChannelGraph + Work -> CnnHypergraph, and the figures of a partition of it."""
