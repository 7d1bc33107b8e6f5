"""One run over several nodes of a job of Slurm: the launcher on the first, a member on each other (docs/slurm.md)."""
