"""Seeds and random states as plain data."""
