"""Taking cards for a run, waiting for them, giving them back."""
