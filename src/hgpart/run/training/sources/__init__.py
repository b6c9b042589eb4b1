"""Where samples come from -> samples that are read by their numbers."""
