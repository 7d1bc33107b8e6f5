"""What changes runs from outside of their supervisor, on a person's word."""
