"""A batch or a stream of batches -> the values that programs of parts get, and the loss."""
