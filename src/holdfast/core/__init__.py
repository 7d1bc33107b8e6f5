"""Decisions as pure functions over the model. No I/O, no clock, no logging, no randomness."""
