"""Problem -> parts in ways that need no search."""
