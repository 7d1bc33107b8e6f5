"""The queue: a journal of acts, and its projection in SQLite."""
