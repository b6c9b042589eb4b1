"""Partition over slices of the batch -> shares of the batch, and copies of what they share."""
