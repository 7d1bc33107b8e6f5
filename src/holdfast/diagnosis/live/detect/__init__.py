"""The detectors of live runs: one condition each, judged from two looks. Pure."""
