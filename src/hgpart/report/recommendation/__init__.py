"""What is said about a recommendation: for programs, in words, and in tables."""
