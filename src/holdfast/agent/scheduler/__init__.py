"""Schedulers that start a run's attempts on machines of theirs, instead of a supervisor that is started here."""
