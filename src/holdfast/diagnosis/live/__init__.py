"""What a live process tree does: hung, slow, starved, or well; from two looks at it, cheap to invasive."""
