"""A part's weights -> their gradients, apart from those of maps; and their versions in flight."""
