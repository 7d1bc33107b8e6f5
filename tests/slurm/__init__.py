"""A real Slurm of the tests' own, and what is proven with it."""
