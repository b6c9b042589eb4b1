"""Records -> HTML tables that can be sorted; every cell keeps its exact figure."""
