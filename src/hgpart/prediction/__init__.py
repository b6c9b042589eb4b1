"""Placement + Schedule + Machine -> seconds of a step before it runs: formulas, a simulation."""
