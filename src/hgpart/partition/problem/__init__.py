"""What is asked for: a Problem with its balance, objective, memory; and how to search."""
