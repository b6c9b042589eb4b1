"""nn.Module -> TracedModel: a graph of ATen operators, by torch.export."""
