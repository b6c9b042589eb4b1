"""ChannelGraph -> parts in ways that need no search."""
