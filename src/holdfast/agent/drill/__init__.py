"""Interrupts a training on purpose and compares what came back of it."""
