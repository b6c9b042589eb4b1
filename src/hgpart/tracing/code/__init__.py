"""A model's Python code -> what it can reach, what it reads, which line runs: for its trace."""
