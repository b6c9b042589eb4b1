"""What makes a placement a torch module: the modules that it lists, their settings, optimizers."""
