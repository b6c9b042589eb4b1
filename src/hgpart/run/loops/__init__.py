"""DistributedModel -> what training loops of your own need beside it, alike in all processes."""
