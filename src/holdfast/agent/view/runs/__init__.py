"""Lists of runs: which there are, where each stands, which of them are a queue's, which use a file."""
