"""What is carried to a box: the bundle of holdfast, and trees of code. `box.Box` is a place with our bundle on it."""
