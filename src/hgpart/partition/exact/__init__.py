"""Problem -> the best partition, proven, or how far from it."""
