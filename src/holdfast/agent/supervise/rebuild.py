"""Rebuilds a run's state when ``state.json`` is missing or damaged, from its other files and the process table.

Loaded only then. The rule is that a job is never started (again) on a guess: a run whose record does not show that it
was let go is given up, one whose record or processes show it is taken for running and looked at like any other that a
new supervisor takes up.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.view.retries import count_automatic
from holdfast.host.box import read_box
from holdfast.host.clock import boot_id, parse_utc, utc_now
from holdfast.host.files import files
from holdfast.host.process import processes
from holdfast.model import wire
from holdfast.model.identity import BoxIdentity, JobProcess, ProcessId
from holdfast.model.lease import LeasedDevice
from holdfast.model.run import Ended, Finalizing, Running, RunState

if TYPE_CHECKING:
    from typing import Any

    from holdfast.model.run import State

    from .recorder import Recorder

KEEPER_NAME = "holdfast-keeper"
NOBODY = 0
"""No process has this pid."""


def rebuild_state(recorder: Recorder, why: str) -> RunState:
    """The best provable state of the attempt; says in log and events what it rests on."""
    manifest = recorder.read_manifest()
    state, source = _find_state(recorder, manifest)
    recorder.log(f"{wire.STATE} cannot be used ({why}); rebuilt from {source}: {type(state).__name__.lower()}")
    recorder.event("state_rebuilt", why=why, source=source, state=type(state).__name__.lower())
    return RunState(
        run_id=recorder.run_id,
        attempt=recorder.attempt,
        version=recorder.event_count,
        box=_find_box(manifest),
        created_at=_created_at(recorder, manifest),
        supervisor=None,
        state=state,
        updated_at=utc_now(),
        generation=recorder.attempt - count_automatic(recorder.run_dir, recorder.attempt),
    )


def _find_box(manifest: dict[str, Any]) -> BoxIdentity:
    """Where it was begun; without a word of that, here: whoever rebuilds it holds its lock."""
    try:
        return wire.decode(BoxIdentity, manifest["box"])
    except (KeyError, wire.WireError):
        return read_box()


def _created_at(recorder: Recorder, manifest: dict[str, Any]) -> str:
    record = _read_object(f"{recorder.run_dir}/{wire.RUN}")
    for text in (manifest.get("written_at"), record.get("created_at")):
        try:
            parse_utc(str(text))
        except (ValueError, IndexError):
            continue
        return str(text)
    return utc_now()


def _read_object(path: str) -> dict[str, Any]:
    try:
        return wire.parse_object(files.read_bytes(path), path)
    except (OSError, wire.WireError):
        return {}


def _find_state(recorder: Recorder, manifest: dict[str, Any]) -> tuple[State, str]:
    try:
        return wire.decode(Ended, recorder.read_exit()), wire.EXIT
    except (OSError, wire.WireError):
        pass
    try:
        return _from_manifest(manifest), wire.MANIFEST
    except (wire.WireError, KeyError, ValueError):
        pass
    found = _from_processes(recorder)
    if found is not None:
        return found, "the process table"
    return Finalizing(since=utc_now()), "nothing: the job was not let go"


def _from_manifest(manifest: dict[str, Any]) -> Running:
    devices = tuple(wire.decode(LeasedDevice, device) for device in manifest.get("devices") or ())
    began = parse_utc(manifest["written_at"])
    return Running(
        since=manifest["written_at"],
        devices=devices,
        keeper=wire.decode(ProcessId, manifest["keeper"]),
        job=wire.decode(JobProcess, manifest["job"]),
        began=began,
        held_from=began,
    )


def _from_processes(recorder: Recorder) -> Running | None:
    """The oldest session leader with the attempt's marker under our uid, and its keeper where there is one."""
    boot, uid = boot_id(), os.geteuid()
    for process in sorted(processes.find_marked(recorder.run_id, recorder.attempt), key=lambda item: item.start_ticks):
        stat = processes.read_stat(process.pid)
        if stat is None or stat.sid != process.pid or processes.read_uid(process.pid) != uid:
            continue
        parent = processes.read_stat(stat.ppid)
        # A job whose keeper was killed hangs below init or another supervisor: never to be taken for its keeper.
        kept = parent is not None and parent.comm == KEEPER_NAME and parent.pid != 1
        keeper = ProcessId(stat.ppid, parent.start_ticks, boot) if kept and parent is not None else None
        job = JobProcess(process, stat.sid, stat.pgid, process.pid)
        return Running(since=utc_now(), devices=(), keeper=keeper or ProcessId(NOBODY, 0, boot), job=job)
    return None
