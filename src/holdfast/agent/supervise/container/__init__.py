"""A job in a container: what goes in, the room by which the box and the first program inside talk, and its life."""
