"""Loops of other libraries, which train parts in processes."""
