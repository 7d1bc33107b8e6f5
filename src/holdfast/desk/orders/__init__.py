"""From a job file at the desk to exactly one run at a place: paths, the order, the journal, the submission."""
