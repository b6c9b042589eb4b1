"""Model + plans and strategies -> Comparison: their figures on one scale."""
