"""Code that is carried to a box: the manifest of a tree, what of it is not sent, and how files are left out."""
