"""Model + ways -> Comparison: their figures on one scale."""
