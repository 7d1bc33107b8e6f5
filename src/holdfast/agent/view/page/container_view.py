"""The container of an attempt for people: which image, which id, and whose pids inside are which here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.host.files import files
from holdfast.host.process.processes import identify, is_alive, list_pids, read_command, read_stat
from holdfast.host.process.table import read_inner_pids
from holdfast.model import wire
from holdfast.model.container import CONTAINER_RECORD, ENTER_PY, INNER_ROOM, ContainerRecord
from holdfast.model.record import record

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    found = _read_record(attempt_dir)
    if found is None:
        return None
    processes = tuple(_list_processes(found))
    from holdfast.host.container.members import is_paused  # lazy: for runs in containers alone

    paused = bool(processes) and is_paused(found)
    return ContainerView(found.runtime.value, found.id, found.name, found.image, found.digest, processes, paused)


def find_living(attempt_dir: str) -> ContainerRecord | None:
    """The container of an attempt while its first process lives."""
    found = _read_record(attempt_dir)
    return found if found is not None and found.init is not None and is_alive(found.init) else None


def find_inside(attempt_dir: str) -> tuple[tuple[ProcessId, ...], tuple[str, ...]]:
    """The job inside an attempt's container, without init and what waits for it, and the directories of its group.

    Both empty where it has no container, or nobody is inside any more.
    """
    container = find_living(attempt_dir)
    if container is None:
        return (), ()
    enter = f"{INNER_ROOM}/{ENTER_PY}"
    found = (
        identify(one.pid)
        for one in _list_processes(container)
        if one.inner_pid != 1 and enter not in (read_command(one.pid) or "")
    )
    return tuple(process for process in found if process is not None), container.groups


def _list_processes(container: ContainerRecord) -> Iterable[InnerProcess]:
    from holdfast.host.container.members import select_inside  # lazy: for runs in containers alone

    if container.init is None or not is_alive(container.init):
        return
    for pid in sorted(select_inside(container, list_pids()))[:MOST_PROCESSES]:
        stat, inner = read_stat(pid), read_inner_pids(pid)
        if stat is not None and len(inner) > 1:
            yield InnerProcess(pid, inner[-1], stat.comm)


def _read_record(attempt_dir: str) -> ContainerRecord | None:
    try:
        return wire.from_bytes(ContainerRecord, files.read_bytes(f"{attempt_dir}/{CONTAINER_RECORD}"), CONTAINER_RECORD)
    except (OSError, wire.WireError):
        return None
