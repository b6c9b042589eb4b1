"""Files, names -> machines: their devices, their links, and how fast these are."""
