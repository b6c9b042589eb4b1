"""A state_dict of the whole model: what it has, how it is read, whether a placement takes it."""
