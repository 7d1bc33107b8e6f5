"""Handing in: what is refused, what is committed, what would be; each answers with a record (docs/queue.md)."""
