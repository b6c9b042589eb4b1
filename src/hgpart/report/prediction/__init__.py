"""What is said about a prediction: its record, for programs, and for people."""
