"""Problem -> Symmetry: which tasks are alike; a partition as how many of each kind lie where."""
