"""The bundle: all of holdfast that a box needs, named by its content; made at the desk, unpacked on the box."""
