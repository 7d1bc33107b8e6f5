"""A checkpoint as bytes: from a state in memory to a proven directory, and back."""
