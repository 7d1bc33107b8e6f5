"""Everything known about one attempt, gathered from its files and put into words.

Reads only. A part that is missing is left out or said to be missing; nothing is guessed: seeds that nobody stated are
"not stated", a limit that nothing holds says so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from holdfast.agent import acting, observe
from holdfast.agent.observe import Presence, Reach
from holdfast.host import files
from holdfast.model import wire
from holdfast.model.errors import NoSuchRun, StorageError
from holdfast.model.units import format_bytes, format_duration

from .attach import duration_of, write_fully
from .cards import devices_of, is_simulated, name_cards
from .render import clean, heading, pairs, print_json, table

if TYPE_CHECKING:
    from holdfast.agent.observe import RunView
    from holdfast.model.identity import ProcessId

    from .runs import Found

LAST_EVENTS = 8
EVENT_CHARS = 160
"""How much of an event's data is shown; `holdfast logs --events` has all of it."""
_SHOWN_OTHERWISE = frozenset(
    {"schema", "kind", "outcome", "exit_code", "evidence", "reason", "status", "refusal", "warnings", "request"}
    | {"at", "ended_at", "started_at", "duration_s", "final_cards"}
)
PHASES = ("created", "preflight", "waiting", "starting", "running", "stopping", "finalizing", "ended")
Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Dossier:
    """One attempt: the look, its events, the findings of both check lists, and the last health sample."""

    view: RunView
    events: list[Facts]
    preflight: list[Facts]
    postflight: list[Facts]
    health: Facts
    earlier: list[Facts]

    def encode(self) -> Facts:
        """The JSON object of ``show --json``: desired, last committed and observed stay apart."""
        view = self.view
        return {
            "run_id": view.run_id,
            "name": view.name,
            "run_dir": view.run_dir,
            "attempt": view.attempt,
            "attempts": [*self.earlier, {"attempt": view.attempt, "condition": view.condition}],
            "condition": view.condition,
            "note": view.note,
            "ended": view.ended,
            "exit_code": view.exit_code,
            "desired": view.desired,
            "committed": view.state,
            "observed": {
                "at": view.observed_at,
                "by": os.uname().nodename,
                "supervisor": view.supervisor,
                "keeper": view.keeper,
                "job": view.job,
                "members": view.members,
                "rebooted": view.rebooted,
            },
            "reachability": {"reach": view.reach, "host": view.host},
            "unreadable": view.unreadable,
            "origin": view.record,
            "manifest": view.manifest,
            "simulated": is_simulated(view),
            "status": view.status,
            "exit": view.exit,
            "heartbeat": view.heartbeat,
            "health": self.health,
            "preflight": self.preflight,
            "postflight": self.postflight,
            "phases": build_phases(self.events),
            "events": self.events,
            "seed": describe_seed(view),
        }


def gather(found: Found, attempt: int | None) -> Dossier:
    """Everything about one attempt, the newest unless told; a run that vanished is finished first.

    Raises:
        NoSuchRun: there is no such attempt.
    """
    view = acting.settle_and_look(found.run_dir)
    if attempt is not None:
        if attempt not in view.attempts:
            known = ", ".join(map(str, view.attempts)) or "none"
            raise NoSuchRun(f"{found.run_id} has no attempt {attempt}; it has {known}", hint="leave --attempt out")
        view = observe.observe(found.run_dir, attempt=attempt)
    earlier = [observe.observe(found.run_dir, attempt=number) for number in view.attempts if number != view.attempt]
    return Dossier(
        view=view,
        events=observe.read_events(found.run_dir, view.attempt),
        preflight=_read_findings(f"{view.attempt_dir}/{wire.PREFLIGHT}"),
        postflight=_read_findings(f"{view.attempt_dir}/{wire.POSTFLIGHT}"),
        health=_read_last(f"{view.attempt_dir}/{wire.HEALTH}"),
        earlier=[{"attempt": old.attempt, "condition": old.condition, "exit_code": old.exit_code} for old in earlier],
    )


def _read_findings(path: str) -> list[Facts]:
    try:
        value = wire.parse_object(files.read_bytes(path), path).get("findings")
    except (OSError, wire.WireError):
        return []
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _read_last(path: str) -> Facts:
    try:
        lines = list(files.read_lines(path))
        return wire.parse_object(lines[-1], path) if lines else {}
    except (OSError, wire.WireError):
        return {}


def build_phases(events: list[Facts]) -> list[Facts]:
    """Each lifecycle state that was entered, with when and for how many seconds (by the monotonic clock)."""
    entered = [event for event in events if event.get("event") in PHASES]
    found = []
    for event, following in zip_longest(entered, entered[1:]):
        begin, end = event.get("monotonic_s"), None if following is None else following.get("monotonic_s")
        known = isinstance(begin, (int, float)) and isinstance(end, (int, float)) and end >= begin
        found.append(
            {
                "phase": event["event"],
                "since": event.get("utc"),
                "seconds": round(end - begin, 6) if known else None,  # type: ignore[operator]  # known says numbers
            }
        )
    return found


def describe_seed(view: RunView) -> str:
    """The declared seed, or that none was stated (OBS-06)."""
    for source in (view.heartbeat, view.manifest, view.record.get("job")):
        seed = source.get("seed") if isinstance(source, dict) else None
        if seed is not None:
            return str(seed)
    return "not stated"


def print_diff(dossier: Dossier, *, as_json: bool) -> int:
    """Print the saved difference between the code that ran and its commit.

    Raises:
        StorageError: there is one and it cannot be read.
    """
    git = _git(dossier.view)
    name = git.get("diff")
    data = b""
    if isinstance(name, str):
        path = os.path.normpath(os.path.join(dossier.view.run_dir, name))
        if not path.startswith(dossier.view.run_dir + "/"):
            raise StorageError(
                f"{wire.RUN} names a difference outside of the run: {name}", hint="the record was edited"
            )
        try:
            data = files.read_bytes(path)
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}", hint=f"holdfast show {dossier.view.run_id}") from error
    if as_json:
        print_json({"run_id": dossier.view.run_id, "git": git, "diff": data.decode("utf-8", "replace")})
        return 0
    if data:
        import sys

        sys.stdout.flush()
        write_fully(sys.stdout.buffer, data)
        return 0
    print(_describe_git(git) + "; no difference was saved")
    return 0


def _git(view: RunView) -> Facts:
    snapshot = view.record.get("snapshot")
    git = snapshot.get("git") if isinstance(snapshot, dict) else None
    return git if isinstance(git, dict) else {}


def _describe_git(git: Facts) -> str:
    if not git.get("commit"):
        return f"no commit is recorded{': ' + str(git['note']) if git.get('note') else ''}"
    dirty = {True: "with changes", False: "clean", None: "changes unknown"}[git.get("dirty")]
    return f"{git['commit']} ({git.get('branch') or 'no branch'}, {dirty})"


def print_dossier(dossier: Dossier, *, environment: bool, every_event: bool) -> None:
    """Print everything for a person, section by section; empty sections are left out."""
    view = dossier.view
    heading(clean(f"{view.run_id}: {view.condition}" + (f" (exit {view.exit_code})" if view.ended else "")))
    pairs(_state_lines(dossier), indent=2)
    _section("job", _job_lines(view))
    _section("where and how", _place_lines(view))
    if build_phases(dossier.events):
        heading("phases")
        rows = [
            (item["phase"], item["since"], None if item["seconds"] is None else format_duration(item["seconds"]))
            for item in build_phases(dossier.events)
        ]
        table(("phase", "since", "took"), rows)
    _section("progress", _progress_lines(dossier))
    _print_findings("preflight", dossier.preflight)
    _print_findings("postflight", dossier.postflight)
    _section("end", _end_lines(view))
    if environment:
        values = view.manifest.get("environment")
        known: list[tuple[str, object]] = sorted(values.items()) if isinstance(values, dict) else []
        _section("environment (allow-listed, as recorded)", known or [("", "not recorded")])
    events = dossier.events if every_event else dossier.events[-LAST_EVENTS:]
    if events:
        heading("events" if every_event else f"last events of {len(dossier.events)}")
        for event in events:
            text = _brief(event.get("data"))
            cut = text if every_event or len(text) <= EVENT_CHARS else text[:EVENT_CHARS] + "..."
            print(clean(f"  {event.get('utc')}  {event.get('event')}  {cut}".rstrip()))
    _section("files", [("run", view.run_dir), ("attempt", view.attempt_dir), *_present_files(view)])


def _section(title: str, lines: list[tuple[str, object]]) -> None:
    known = [(key, value) for key, value in lines if value not in (None, "", [], {}, ())]
    if known:
        heading(title)
        pairs(known, indent=2)


def _state_lines(dossier: Dossier) -> list[tuple[str, object]]:
    view = dossier.view
    lines: list[tuple[str, object]] = [("why", view.note)] if view.note else []
    if view.desired is not None:
        reason = f" ({view.desired.reason})" if view.desired.reason else ""
        lines.append(("wanted", f"{view.desired.wish.value} by {view.desired.by} at {view.desired.at}{reason}"))
    if view.state is not None:
        kind = type(view.state.state).__name__.lower()
        updated = view.state.updated_at or view.state.created_at
        lines.append(("last written", f"{kind}, version {view.state.version}, at {updated}"))
    where = "here" if view.reach is Reach.HERE else f"{view.reach.value.replace('_', ' ')}: {view.host}"
    lines.append(("seen", f"{view.observed_at}, {where}{', rebooted since' if view.rebooted else ''}"))
    if not view.over and view.state is not None:
        keeper, job = observe.recorded_processes(view.state.state)
        lines.append(("supervisor", _describe_process(view.supervisor, view.state.supervisor)))
        lines.append(("keeper", _describe_process(view.keeper, keeper)))
        lines.append(("job", _describe_process(view.job, job)))
    if len(view.attempts) > 1:
        old = [f"{item['attempt']} {item['condition']}" for item in dossier.earlier]
        lines.append(("attempts", ", ".join([*old, f"{view.attempt} {view.condition} (this)"])))
    lines += [("unreadable", f"{item.path}: {item.reason}") for item in view.unreadable]
    return lines


def _describe_process(presence: Presence, process: ProcessId | None) -> str:
    return presence.value if process is None else f"{presence.value} (pid {process.pid})"


def _job_lines(view: RunView) -> list[tuple[str, object]]:
    record, manifest = view.record, view.manifest
    job = record.get("job")
    spec = job if isinstance(job, dict) else {}
    snapshot = record.get("snapshot")
    copies = snapshot.get("files") if isinstance(snapshot, dict) else None
    lines: list[tuple[str, object]] = [
        ("command", _words(manifest.get("command")) or _words(spec.get("command"))),
        ("in", spec.get("workdir")),
        ("asked by", f"{record.get('user')} with {_words(record.get('argv'))}" if record.get("user") else None),
        ("job hash", record.get("job_sha256")),
        ("code", _describe_git(_git(view)) if record else None),
        ("seed", describe_seed(view)),
    ]
    for copy in copies if isinstance(copies, list) else []:
        if isinstance(copy, dict):
            where = copy.get("copy") or f"not copied: {copy.get('note')}"
            lines.append((str(copy.get("role")), f"{copy.get('source')} -> {where}, sha256 {copy.get('sha256')}"))
    return lines


def _place_lines(view: RunView) -> list[tuple[str, object]]:
    manifest = view.manifest
    containment = manifest.get("containment")
    rung = f"{containment.get('rung')}: {containment.get('why')}" if isinstance(containment, dict) else None
    lines: list[tuple[str, object]] = [
        ("host", view.host),
        ("cards", _describe_cards(view)),
        ("contained by", rung),
        ("stop grace", format_duration(acting.grace_of(view))),
    ]
    limits = manifest.get("limits")
    for limit in limits if isinstance(limits, list) else []:
        if isinstance(limit, dict):
            detail = f" ({limit['detail']})" if limit.get("detail") else ""
            lines.append((f"limit {limit.get('name')}", f"{limit.get('asked')} by {limit.get('mechanism')}{detail}"))
    if not limits and manifest:
        lines.append(("limits", "none asked for"))
    added = manifest.get("environment_added")
    if isinstance(added, (dict, list)) and added:
        lines.append(("env added", ", ".join(map(str, added))))
    return lines


def _describe_cards(view: RunView) -> str:
    devices = devices_of(view)
    if not devices:
        return "none"
    uuids = ", ".join(
        str(device.get("slice_uuid") or device.get("card_uuid") or device.get("uuid")) for device in devices
    )
    return f"{name_cards(view)}: {uuids}"


def _progress_lines(dossier: Dossier) -> list[tuple[str, object]]:
    beat = {key: value for key, value in dossier.view.heartbeat.items() if key != "schema"}
    sample = {key: value for key, value in dossier.health.items() if key != "schema"}
    lines: list[tuple[str, object]] = []
    if beat:
        lines.append(("heartbeat", ", ".join(f"{key} {value}" for key, value in beat.items())))
    if sample:
        lines += [("memory", _describe_memory(sample)), ("health", _brief(sample))]
    return lines


def _describe_memory(sample: Facts) -> str | None:
    """The tree's memory against its limit, file cache left out where that is known; None when nothing is known."""
    used, limit = sample.get("memory_anon_bytes") or sample.get("memory_bytes"), sample.get("memory_limit_bytes")
    if not isinstance(used, int):
        return None
    if not isinstance(limit, int) or limit <= 0:
        return f"{format_bytes(used)}, no limit"
    return f"{format_bytes(used)} of {format_bytes(limit)} ({100 * used / limit:.0f} %)"


def _print_findings(title: str, findings: list[Facts]) -> None:
    if not findings:
        return
    levels = [str(item.get("level")) for item in findings]
    counts = ", ".join(
        f"{levels.count(level)} {level}" for level in ("pass", "unknown", "warn", "fail") if level in levels
    )
    heading(f"{title}: {counts}")
    shown = [item for item in findings if item.get("level") != "pass"]
    if shown:
        rows = [(item.get("level"), item.get("id"), item.get("subject"), item.get("evidence")) for item in shown]
        table(("level", "check", "on", "seen"), rows)


def _end_lines(view: RunView) -> list[tuple[str, object]]:
    end, status, record = view.end, view.status, view.exit
    if end is None and not record:
        return []
    lines: list[tuple[str, object]] = []
    if end is not None:
        lines += [
            ("at", end.at),
            ("outcome", f"{end.outcome.value} (exit {end.exit_code})"),
            ("evidence", end.evidence),
        ]
        seconds = duration_of(view)
        if seconds is not None:
            lines.append(("job ran", format_duration(seconds)))
        if end.refusal is not None:
            lines += [("refused", end.refusal.message), ("remedy", end.refusal.hint)]
        lines += [("warning", warning) for warning in end.warnings]
    if status:
        code, number = status.get("code"), status.get("signal")
        lines.append(("status", f"exit code {code}" if code is not None else f"signal {number}"))
        lines.append(("cpu", f"{status.get('user_s')} s user, {status.get('system_s')} s system"))
        peak = status.get("max_rss_bytes")
        lines.append(("peak memory", format_bytes(peak) if isinstance(peak, int) else None))
    lines += [
        (key, _brief(value))
        for key, value in record.items()
        if key not in _SHOWN_OTHERWISE and value not in (None, [], {})
    ]
    return lines


def _present_files(view: RunView) -> list[tuple[str, object]]:
    names = (wire.OUTPUT, wire.SUPERVISOR_LOG, wire.FAILURE, "first_error.txt")
    found: list[tuple[str, object]] = []
    for name in names:
        path = f"{view.attempt_dir}/{name}"
        if os.path.exists(path):
            found.append((name, f"{path} ({format_bytes(os.path.getsize(path))})"))
    return found


def _words(value: object) -> str:
    import shlex

    return shlex.join(map(str, value)) if isinstance(value, list) else ""


def _brief(value: object) -> str:
    """A JSON value in one line."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_brief(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(_brief(item) for item in value) + "]"
    return str(value)
