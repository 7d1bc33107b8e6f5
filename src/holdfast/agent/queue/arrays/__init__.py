"""Sweeps whose jobs a scheduler runs, as tasks of its arrays: the record of all jobs, their runs, their ends."""
