"""A run comes home: asked for, taken file by file, proven by its roster, and tried by loading (docs/pull.md)."""
