"""Copies of files that are proven where they were written."""
