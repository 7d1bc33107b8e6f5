"""One look at a live process tree: threads, descriptors, stacks, counters, the run's own files."""
