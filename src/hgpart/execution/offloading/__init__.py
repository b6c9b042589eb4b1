"""What parts put into slower memory until backward needs it."""
