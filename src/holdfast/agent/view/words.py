"""Names of groups and jobs for shell completion: at once or not at all."""

from __future__ import annotations

import os

from holdfast.store.queue.queue import Queue, queue_directory

MOST_COMPLETIONS = 50
COMPLETED_JOBS = 2000
"""Jobs that are looked through at a TAB: it has to answer at once."""


def list_words(incomplete: str) -> list[tuple[str, str]]:
    """Groups and jobs of this account's queue that begin with `incomplete`, as (word, help); none without a queue."""
    if not os.path.isdir(queue_directory()):
        return []
    with Queue() as queue:
        return pick_words(queue, incomplete)


def pick_words(queue: Queue, incomplete: str) -> list[tuple[str, str]]:
    """Groups and jobs that begin with `incomplete`, as (word, help)."""
    words = {}
    for name, group in queue.groups().items():
        if f"{name}/".startswith(incomplete):
            words[f"{name}/"] = f"the whole group ({group.kind.value})"
    for job in queue.jobs(limit=COMPLETED_JOBS):
        if job.label.startswith(incomplete):
            words[job.label] = job.state.value
    return list(words.items())[:MOST_COMPLETIONS]
