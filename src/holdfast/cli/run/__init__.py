"""The two ways of ``holdfast run``: on this machine, and at a place."""
