"""ATen operator -> what it does to channels, how its share is cut, its multiply-accumulates."""
