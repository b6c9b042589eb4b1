"""Records -> the pages that commands write, each of them one file; computes nothing but layout."""
