"""Records -> tables, JSON, CSV: what hgpart found, for people and for programs."""
