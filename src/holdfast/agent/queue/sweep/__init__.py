"""What a sweep keeps on the box beside its jobs: its recipe, its configurations, its results."""
