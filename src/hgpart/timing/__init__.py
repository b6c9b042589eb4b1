"""Model + TracedModel + ChannelGraph -> LayerTimes: measured seconds of shares of layers."""
