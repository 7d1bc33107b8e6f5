"""Leases of cards: kernel locks, public records, the line of those who wait."""
