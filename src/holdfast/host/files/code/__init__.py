"""Code trees on a disk: hashes that are remembered, and the trees of a runs root by their hash."""
