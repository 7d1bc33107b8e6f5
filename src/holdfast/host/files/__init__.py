"""Durable files: atomic replacement, locks, file events, disks, copies of code."""
