"""Problem + constraints -> whether they can be met, and partitions that meet them."""
