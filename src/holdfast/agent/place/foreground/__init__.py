"""The supervisor in the foreground of a place: a batch step, process 1 of a container, a cell of a notebook."""
