"""Placement -> a part's stages, and files of them that programs without hgpart run."""
