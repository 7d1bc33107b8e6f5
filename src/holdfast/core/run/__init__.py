"""The lifecycle of a run and what an end means. Pure."""
