"""All parts of a placement in one process, one thread per part."""
