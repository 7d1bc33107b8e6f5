"""What is remembered beside the run directories: the index of runs. The only SQL, and rebuildable at any time.

Standard library only. It knows directories and rows; what a run is, its callers tell it.
"""
