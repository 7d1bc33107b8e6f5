"""Containers that outlived their run: of a killed supervisor, or because their runtime refused when it ended.

Told by our labels alone, and by the run's own records: what no run below this root has created is nobody's business
here. A root of which no attempt has a container costs a look at its directories and asks no runtime.
"""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING

from holdfast.agent.view import observe
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.container import CONTAINER_RECORD, ContainerRecord, RuntimeName

if TYPE_CHECKING:
    from collections.abc import Iterator

FROM_RUNTIMES = (RuntimeName.PODMAN, RuntimeName.DOCKER)


def clear_containers(root: str, *, dry_run: bool) -> list[tuple[str, str, str]]:
    """Remove the containers of ended attempts: run, container, and why it could not be (empty: it was)."""
    programs = {
        (record.runtime, record.program, tuple(sorted(record.settings.items())))
        for record in list_records(root)
        if record.runtime in FROM_RUNTIMES
    }
    found: list[tuple[str, str, str]] = []
    for name, program, settings in sorted(programs):
        found += _clear_of(root, name, program, {**os.environ, **dict(settings)}, dry_run=dry_run)
    return found


def list_records(root: str) -> Iterator[ContainerRecord]:
    """The records of this account's runs: in a root that several share, another's would name a program of its own."""
    for path in glob.iglob(f"{glob.escape(root)}/*/{wire.ATTEMPTS}/*/{CONTAINER_RECORD}"):
        run_dir = path.rsplit("/", 3)[0]
        try:
            if os.lstat(run_dir).st_uid != os.geteuid():
                continue
            yield wire.from_bytes(ContainerRecord, files.read_bytes(path), CONTAINER_RECORD)
        except (OSError, wire.WireError):
            continue


def _clear_of(
    root: str, name: RuntimeName, program: str, environ: dict[str, str], *, dry_run: bool
) -> Iterator[tuple[str, str, str]]:
    from holdfast.host.container.choose import open_runtime  # lazy: for runs in containers alone
    from holdfast.host.container.runtime import RuntimeProblem  # lazy: for runs in containers alone

    runtime = open_runtime(name, program, environ)
    try:
        listed = runtime.list_ours()
    except RuntimeProblem as error:
        yield "", name.value, f"its containers cannot be listed: {error.why}; {error.remedy}"
        return
    for one in listed:
        if os.path.dirname(one.run_dir) != root or not _is_over(one.run_dir, one.attempt, running=one.running):
            continue
        why = ""
        if not dry_run:
            try:
                runtime.remove(one.id)
            except RuntimeProblem as error:
                why = f"{error.why}; {error.remedy}"
        yield one.run_id, f"{name.value} container {one.id[:12]}", why


def _is_over(run_dir: str, attempt: int, *, running: bool) -> bool:
    """Whether nothing of an attempt is to run any more; of one whose directory is gone only what does not run."""
    if not os.path.isdir(wire.attempt_dir(run_dir, attempt)):
        return not running and not os.path.isdir(run_dir)
    return observe.observe_run(run_dir, attempt=attempt).over
