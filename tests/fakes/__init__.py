"""Fakes: real programs and libraries that stand in for hardware and services."""
