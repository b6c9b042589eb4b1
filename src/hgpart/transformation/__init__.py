"""nn.Module -> nn.Module that is easier to split: cells side by side, in groups, or in parts."""
