"""The processes of a run, and what one sends to others over torch.distributed."""
