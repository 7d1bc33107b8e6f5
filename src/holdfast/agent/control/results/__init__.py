"""The copy of a run's results to storage that lasts (docs/results.md)."""
