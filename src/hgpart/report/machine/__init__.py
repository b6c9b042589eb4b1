"""What is said about a machine."""
