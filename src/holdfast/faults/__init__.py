"""Faults for real: each in a sandbox of its own, so that people and tests see what holdfast says about it.

`table` is the list, `guard` the process that makes one fault happen and undoes it, `engine` what the command line
calls.
Nothing here judges: the verdict is asked of ``holdfast diagnose``, like a person would.
"""
