"""Slurm's words: what is written for it, and what is read from it. Pure."""
