"""What a step takes before it is run: published formulas, and a simulation."""
