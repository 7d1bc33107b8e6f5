"""The queue's worker: starts cells as runs, watches them, moves them on (docs/queue.md)."""
