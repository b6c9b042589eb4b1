"""Orders that parts of a stream find themselves: each does what is ready, whatever that is."""
