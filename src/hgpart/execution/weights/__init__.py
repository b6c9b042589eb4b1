"""A part's weights -> their gradients, copies in other parts, and versions in flight."""
