"""What a partition is asked for: balance, objective, memory, links between devices."""
