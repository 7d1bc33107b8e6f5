"""What the desk knows and does: places and what was measured of them, routing, orders, what was last seen of runs.

Imports nothing that only Linux has: a desk may be a Mac.
"""
