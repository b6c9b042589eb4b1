"""Placements at work: steps and training, in one process or in several."""
