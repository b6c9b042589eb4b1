"""A placed model + data -> a trained one, with checkpoints."""
