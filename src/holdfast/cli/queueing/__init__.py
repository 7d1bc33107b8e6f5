"""The desk's side of the queue: handing cells in, showing where they stand, changing and waiting for them."""
