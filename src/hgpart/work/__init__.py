"""ChannelGraph -> Work: the cost of each task, counted or measured."""
