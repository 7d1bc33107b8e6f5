"""The end of a run: results looked at, records written, another attempt or none."""
