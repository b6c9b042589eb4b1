"""What makes a placement a torch module: modules that it lists, what is set on them, optimizers."""
