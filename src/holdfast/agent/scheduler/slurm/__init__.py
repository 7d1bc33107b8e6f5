"""Slurm, by its own commands. Its words are read and written by `core.slurm`."""
