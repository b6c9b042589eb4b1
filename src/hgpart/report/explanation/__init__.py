"""Explanation, PlanDifference -> text, tables and JSON."""
