"""Processes of this box: identity, signals, children, helpers with a deadline."""
