"""The queue's worker: starts jobs as runs, watches them, moves them on (docs/queue.md)."""
