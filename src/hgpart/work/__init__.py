"""ChannelGraph -> Work: what each task costs, counted or measured."""
