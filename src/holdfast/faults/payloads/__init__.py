"""What the runs of faults execute: small programs of the standard library, started as ``python -m ...``."""
