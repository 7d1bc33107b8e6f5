"""Runs whose attempts a scheduler starts: stopped, and settled."""
