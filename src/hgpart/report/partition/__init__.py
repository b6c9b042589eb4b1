"""What is said about a partition: its record, for programs, and for people."""
