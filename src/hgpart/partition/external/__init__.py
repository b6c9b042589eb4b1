"""Hypergraph -> parts, by KaHyPar and Mt-KaHyPar in a process of their own."""
