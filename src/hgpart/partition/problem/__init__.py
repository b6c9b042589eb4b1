"""The Problem, with its balance, objective and memory, and the Search that is to solve it."""
