"""A place whose Slurm starts the runs: its commands are typed where the place is reached, on a login node or here."""
