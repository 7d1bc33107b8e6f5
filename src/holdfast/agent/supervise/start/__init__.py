"""Bringing a job up: checks, containment, its environment, its manifest."""
