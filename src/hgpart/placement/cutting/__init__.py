"""A layer of a traced graph + some of its tasks -> an operator graph of these tasks only."""
