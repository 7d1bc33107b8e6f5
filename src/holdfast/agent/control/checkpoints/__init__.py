"""Directories of checkpoints: what is removed of them, and one as one plain file."""
