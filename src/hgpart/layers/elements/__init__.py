"""Elements of parameters and constants: which task has them, and what is computed of them."""
