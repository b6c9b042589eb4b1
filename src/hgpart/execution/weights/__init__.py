"""A part's weights -> their gradients, copies that other parts have, and versions in flight."""
