"""ATen operator -> what it does to channels, how a part's share is cut, multiply-accumulates."""
