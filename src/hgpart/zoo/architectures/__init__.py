"""Built-in architectures, one family per file."""
