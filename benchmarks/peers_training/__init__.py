"""What runs inside the processes of ``benchmarks/training.py``: the state, the ways to save it, the measurements."""
