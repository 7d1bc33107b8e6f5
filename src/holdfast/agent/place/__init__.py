"""The box's side of a place: internal entries that a desk calls through the bundle (docs/places.md)."""
