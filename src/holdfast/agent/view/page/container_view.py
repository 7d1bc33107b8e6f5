"""The container of an attempt for people: which image, which id, and whose pids inside are which here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.host.process.processes import identify, is_alive, read_command, read_stat
from holdfast.host.process.table import read_inner_pids
from holdfast.model.container import CONTAINER_RECORD, ENTER_PY, INNER_ROOM
from holdfast.model.record import record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.host.container.recorded import ContainerLook
    from holdfast.model.container import ContainerRecord
    from holdfast.model.identity import ProcessId

MOST_PROCESSES = 200


@record
class InnerProcess:
    """One process inside: its pid here, its pid there, and the kernel's name for it."""

    pid: int
    inner_pid: int
    name: str


@record
class ContainerView:
    """An attempt's container; `processes` are those that live now, as far as they can be seen from here.

    `paused`: somebody has paused it, so nothing inside moves.
    """

    runtime: str
    id: str
    name: str
    image: str
    digest: str
    processes: tuple[InnerProcess, ...]
    paused: bool = False


def read_container(attempt_dir: str) -> ContainerView | None:
    """The container of an attempt; None where it has none."""
    look = _look_inside(attempt_dir)
    if look is None:
        return None
    found, processes = look.container, tuple(_list_processes(look))
    paused = bool(processes) and look.paused
    return ContainerView(found.runtime.value, found.id, found.name, found.image, found.digest, processes, paused)


def find_living(attempt_dir: str) -> ContainerRecord | None:
    """The container of an attempt while its first process lives."""
    look = _look_inside(attempt_dir)
    found = None if look is None else look.container
    return found if found is not None and found.init is not None and is_alive(found.init) else None


def find_inside(attempt_dir: str) -> tuple[tuple[ProcessId, ...], tuple[str, ...]]:
    """The job inside an attempt's container, without init and what waits for it, and the directories of its group.

    Both empty where it has no container, or nobody is inside any more.
    """
    look = _look_inside(attempt_dir)
    if look is None or not look.pids:
        return (), ()
    enter = f"{INNER_ROOM}/{ENTER_PY}"
    found = (
        identify(one.pid)
        for one in _list_processes(look)
        if one.inner_pid != 1 and enter not in (read_command(one.pid) or "")
    )
    return tuple(process for process in found if process is not None), look.container.groups


def _list_processes(look: ContainerLook) -> Iterable[InnerProcess]:
    for pid in look.pids[:MOST_PROCESSES]:
        stat, inner = read_stat(pid), read_inner_pids(pid)
        if stat is not None and len(inner) > 1:
            yield InnerProcess(pid, inner[-1], stat.comm)


def _look_inside(attempt_dir: str) -> ContainerLook | None:
    if not os.path.exists(f"{attempt_dir}/{CONTAINER_RECORD}"):
        return None
    from holdfast.host.container.recorded import look_inside  # lazy: for runs in containers alone

    return look_inside(attempt_dir)
