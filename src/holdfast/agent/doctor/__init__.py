"""Examines this host for training, each finding with its fix. Changes nothing.

Sections are functions from a `Host` to findings, in the order of a person's questions: what runs here, the cards, the
framework, limits, login, runs and disks, network, tools for diagnosis. Each stands alone and bounds its own waits; what
cannot be read is `UNKNOWN`, never a pass.
"""
