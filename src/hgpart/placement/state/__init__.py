"""A state_dict of the whole model: its entries, files, and whether a placement accepts it."""
