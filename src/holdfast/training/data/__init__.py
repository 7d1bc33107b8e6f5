"""Loaders that resume in the middle of an epoch."""
