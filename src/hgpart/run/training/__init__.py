"""A placed model + data -> a trained model, with checkpoints."""
