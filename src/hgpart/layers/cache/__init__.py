"""ChannelGraph -> what commands keep of it, and read without torch."""
