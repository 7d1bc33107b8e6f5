"""Profiles, pure: what a file may say, inheritance, survival, age of facts, lint, variables of jobs."""
