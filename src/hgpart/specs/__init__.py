"""What users write -> what they mean: models, code of their own, the nearest of known names."""
