"""Partitions of shares of the batch -> the programs of parts, as fx graphs."""
