"""Norms over channels: operators that they are traced as, and their channel rules."""
