"""Explanation, Difference -> text, tables and JSON."""
