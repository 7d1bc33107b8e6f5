"""Judges what is wrong with the runs of an account, and since when. Pure."""
