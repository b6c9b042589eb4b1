"""The processes of a run, and their messages over torch.distributed."""
