"""Transformation -> what is said about it: a table."""
