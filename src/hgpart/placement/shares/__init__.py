"""Partition over slices of the batch -> shares of it, and copies of what these have in common."""
