"""Files that others wrote -> values; values -> files, whole or not at all."""
