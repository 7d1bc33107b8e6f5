"""Data sets on their way to a box: a roster made here, and what is missing there, file by file."""
