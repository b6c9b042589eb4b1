"""Operators that are traced as the others that they are made of, and the rules of these."""
