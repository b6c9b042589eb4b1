"""PartProgram + inputs -> results: the parts of a model at work, in one process."""
