"""The profiles that a desk knows: those of the package, and the user's own over them."""
