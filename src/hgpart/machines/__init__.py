"""Measurements, files, names -> machines: what their devices and links do."""
