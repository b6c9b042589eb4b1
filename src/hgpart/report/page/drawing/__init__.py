"""Records -> figures, grids and networks, which page.js draws."""
