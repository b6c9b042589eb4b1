"""A batch in slices: `batch_shares` (which are computed as one), `copies` (of what they share)."""
