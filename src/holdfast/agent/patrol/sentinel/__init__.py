"""Sentinels: waiting until something is so of a run, here or in a process of their own."""
