"""Problem -> Solution: classes of equal tasks, and the search over their counts."""
