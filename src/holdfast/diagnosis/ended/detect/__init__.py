"""The detectors of ended runs: one cause each, judged from evidence. Pure."""
