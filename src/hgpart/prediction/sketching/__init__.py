"""Partition, LayerTimes, Machine -> Estimate: a simulated step of a plan that is not placed."""
