"""What is on disk of checkpoints."""
