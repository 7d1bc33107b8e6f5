"""What `dossier` gathered about one attempt, put into words for a person, section by section.

Empty sections are left out; a limit that nothing holds says so.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent import acting, observe
from holdfast.agent.observe import Presence, Reach
from holdfast.core.leaving import describe_leaving
from holdfast.host import files
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.queue import DEFAULT_GROUP
from holdfast.model.units import format_bytes, format_duration

from .attach import duration_of, write_fully
from .cards import devices_of, name_cards
from .dossier import build_phases, describe_seed
from .render import clean, heading, pairs, print_json, table

if TYPE_CHECKING:
    from holdfast.agent.observe import RunView
    from holdfast.model.identity import ProcessId

    from .dossier import Dossier, Facts

SOON_S = 24 * 3600
LAST_EVENTS = 8
EVENT_CHARS = 160
"""How much of an event's data is shown; `holdfast logs --events` has all of it."""
DEEPEST_SHOWN = 20
"""A damaged record may be nested as deep as the parser goes."""
_SHOWN_OTHERWISE = frozenset(
    {"schema", "kind", "outcome", "exit_code", "evidence", "ending", "reason", "status", "refusal", "warnings"}
    | {"request", "at", "ended_at", "started_at", "duration_s", "final_cards", "stop", "failure_class"}
)


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
    _section("it stands still", dossier.describe_stall())
    _section("failure", _failure_lines(dossier))
    _section("job", _job_lines(view))
    _section("where and how", _place_lines(view, environment=environment))
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


def _failure_lines(dossier: Dossier) -> list[tuple[str, object]]:
    failure = dossier.failure
    if failure is None:
        return []
    lines: list[tuple[str, object]] = [("class", f"{failure.kind.value} ({failure.confidence.value})")]
    lines.append(("seen", "\n".join(clue.text for clue in failure.evidence_for)))
    if failure.unknown:
        lines.append(("not readable", f"{len(failure.unknown)} things: holdfast diagnose {dossier.view.run_id}"))
    lines += [("explain", f"holdfast explain {gotcha}") for gotcha in failure.gotchas]
    # Its own last lines stand in the note, not here.
    output = f"holdfast logs -n 20 {dossier.view.run_id}" if dossier.view.end and not dossier.view.end.refusal else None
    return [*lines, ("do", failure.action), ("output", output)]


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
    lines.append(("cell", _describe_cell(view)))
    lines += [("unreadable", f"{item.path}: {item.reason}") for item in view.unreadable]
    return lines


def _describe_cell(view: RunView) -> str | None:
    """The cell of the queue that the run is of; None for a run of its own."""
    cell = view.record.get("cell")
    if not isinstance(cell, dict) or not cell.get("name"):
        return None
    group = cell.get("group")
    label = str(cell["name"]) if group in (None, DEFAULT_GROUP) else f"{group}/{cell['name']}"
    return f"{label} of the queue  (holdfast queue show {label})"


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


def _place_lines(view: RunView, *, environment: bool) -> list[tuple[str, object]]:
    manifest = view.manifest
    containment = manifest.get("containment")
    words = [containment.get("rung"), containment.get("why")] if isinstance(containment, dict) else []
    rung = ": ".join(str(word) for word in dict.fromkeys(words) if word) or None
    lines: list[tuple[str, object]] = [
        ("host", view.host),
        ("cards", _describe_cards(view)),
        ("placed", _describe_placement(view)),
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
        names = ", ".join(map(str, added)) if environment else f"{len(added)} variables (--env names them)"
        lines.append(("env added", names))
    return lines


def _describe_placement(view: RunView) -> str | None:
    """Where the queue had this attempt run beyond what its job says; None when nowhere."""
    from holdfast.agent.queueing.placing import read_placement

    placement = read_placement(view.attempt_dir)
    if placement is None:
        return None
    words = ["on cards that it shares with nobody"] if placement.alone else []
    if placement.min_total_bytes is not None:
        words.append(f"on cards with more than {format_bytes(placement.min_total_bytes)}")
    return f"{' and '.join(words) or 'by the queue'}: {placement.why}"


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
        lines.append(("heartbeat", _brief(beat)))
    durable = _last_durable(dossier.view)
    if durable is not None:
        lines.append(("durable step", f"{durable}: a restart goes on from here"))
    if sample:
        disks = sample.pop("disks", None)
        lines += [("memory", _describe_memory(sample)), ("health", _brief(sample)), ("disks", _describe_disks(disks))]
    return lines


def _describe_disks(disks: object) -> str:
    """A line for each file system of the last health sample: what is free of what."""
    lines = []
    for disk in disks if isinstance(disks, list) else []:
        free, total = (disk.get(f"{name}_bytes") for name in ("free", "total"))
        known = isinstance(free, int) and isinstance(total, int)
        seen = f"{format_bytes(free)} of {format_bytes(total)} free" if known else f"not known: {disk.get('unread')}"
        full_in_s = disk.get("full_in_s")
        if isinstance(full_in_s, (int, float)) and full_in_s < SOON_S:
            seen += f", full in {format_duration(full_in_s)} at this rate"
        lines.append(f"{disk.get('mount_point')}: {seen}")
    return "\n".join(lines)


def _last_durable(view: RunView) -> int | None:
    """The newest checkpoint that its training says is on disk: what it wrote on leaving, else its heartbeat."""
    left = view.end.stop if view.end is not None else None
    told = view.heartbeat.get("last_durable_step")
    steps = [step for step in (None if left is None else left.checkpoint_step, told) if isinstance(step, int)]
    return max(steps, default=None)


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
        if end.stop is not None:
            lines.append(("it left", describe_leaving(end.stop)))
        seconds = duration_of(view)
        if seconds is not None:
            lines.append(("job ran", format_duration(seconds)))
        if end.refusal is not None:
            lines += [("refused", end.refusal.message), ("remedy", end.refusal.hint)]
        lines += [("warning", warning) for warning in end.warnings]
        lines.append(("queue", _describe_requeue(view)))
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


def _describe_requeue(view: RunView) -> str | None:
    """What the queue decided after this attempt; None when it did not have to."""
    if not os.path.lexists(f"{view.attempt_dir}/{wire.REQUEUE}"):
        return None
    from holdfast.agent.queueing.requeue import read_requeue

    found = read_requeue(view.run_dir, view.attempt)
    if found is None:
        return f"{wire.REQUEUE} cannot be read"
    pause = f" after {format_duration(found.wait_s)}" if found.wait_s else ""
    return f"{'another attempt' if found.again else 'no other attempt'}{pause}: {found.why}"


def _present_files(view: RunView) -> list[tuple[str, object]]:
    names = (wire.OUTPUT, wire.SUPERVISOR_LOG, wire.FAILURE, wire.VERDICT, "first_error.txt")
    found: list[tuple[str, object]] = []
    for name in names:
        path = f"{view.attempt_dir}/{name}"
        if os.path.exists(path):
            found.append((name, f"{path} ({format_bytes(os.path.getsize(path))})"))
    return found


def _words(value: object) -> str:
    import shlex

    return shlex.join(map(str, value)) if isinstance(value, list) else ""


def _brief(value: object, depth: int = 0) -> str:
    """A JSON value in one line; what is not known is left out of mappings, what is nested too deep is cut."""
    if isinstance(value, (dict, list)) and depth > DEEPEST_SHOWN:
        return "..."
    if isinstance(value, dict):
        return ", ".join(_brief_fact(str(key), item, depth) for key, item in value.items() if item is not None)
    if isinstance(value, list):
        return "[" + ", ".join(_brief(item, depth + 1) for item in value) + "]"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
    return str(value)


def _brief_fact(key: str, value: object, depth: int) -> str:
    if key.endswith("_bytes") and isinstance(value, int):
        return f"{key.removesuffix('_bytes')} {format_bytes(value)}"
    return f"{key} {_brief(value, depth + 1)}"
