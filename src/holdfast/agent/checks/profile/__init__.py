"""Checks that rest on what is known of the kind of machine."""
