"""A batch, or a stream of them -> the values that programs of parts are given, and the loss."""
