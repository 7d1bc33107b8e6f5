"""Runtimes of containers on this box: found, asked by their command lines, each call with a deadline."""
