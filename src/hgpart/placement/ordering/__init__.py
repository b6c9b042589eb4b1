"""Placement -> Schedule: a step of its parts in order, as asked for or as is usual."""
