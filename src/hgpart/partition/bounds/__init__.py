"""Problem -> a volume that no partition is below."""
