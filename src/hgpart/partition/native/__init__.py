"""Problem -> Solution: the search over counts of equal tasks."""
