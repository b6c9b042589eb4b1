"""TracedModel -> ChannelGraph: layers, their tasks, and which channels each of them reads."""
