"""Name -> a way to divide a model: built in, of an installed backend, of a user."""
