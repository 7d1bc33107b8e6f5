"""Verbs that are read at the desk, and carried out by an entry of the place."""
