"""What parts did when, and what travelled."""
