"""What follows from a job's own description: environment, limits, what is secret. Pure."""
