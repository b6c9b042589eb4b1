"""All parts of a placement in one process, a thread for each."""
