"""The code of a job: what git sees of it, by the hash of its manifest, and its way to a box."""
