"""Checks of a job's container; loaded for jobs with an image alone."""
