"""Who carries a command line out: this machine, or a place; and how it gets there and back (docs/places.md)."""
