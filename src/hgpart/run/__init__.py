"""The runtimes: the same submodules in one process or in many."""
