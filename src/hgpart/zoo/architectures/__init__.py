"""Built-in architectures, a family a file."""
