"""Model + TracedModel + ChannelGraph -> LayerTimes: shares of layers on the clock."""
