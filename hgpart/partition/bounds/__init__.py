"""ChannelGraph + Balance -> a volume that no partition is below."""
