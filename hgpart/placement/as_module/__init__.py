"""What makes a placement a torch module: the modules that it lists, the optimizers that it has."""
