"""This very box: the run directory is a local path, and the supervisor a process beside us."""
