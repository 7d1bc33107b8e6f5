"""One attempt of a run in words for a person, section by section.

Empty sections are left out; a limit that nothing holds says so.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.core.control_characters import one_line
from holdfast.core.run.progress import estimate_left
from holdfast.core.run.stop_record import describe_leaving
from holdfast.host.clock import epoch_s, format_utc
from holdfast.model.origin import KeyChange
from holdfast.model.queue import DEFAULT_GROUP
from holdfast.model.run import Ended
from holdfast.model.units import format_bytes, format_count, format_duration

from . import clean, heading, pairs, table
from .job_change import describe_changes, describe_limit
from .metrics import describe_beat, draw_curve, say_progress

if TYPE_CHECKING:
    from holdfast.agent.view.page.dossier import Dossier
    from holdfast.agent.view.time_limits import TimeLimit

Facts = dict[str, Any]
SOON_S = 24 * 3600
MOST_UNTRACKED = 5
LONGEST_UNTRACKED = 100
MOST_FILES = 20
LONGEST_FILE = 100
LAST_EVENTS = 8
EVENT_CHARS = 160
"""How much of an event's data is shown; `holdfast logs --events` has all of it."""
EVENT_TOLD = frozenset({"at", "since", "began", "started_at", "held_from", "evidence"})
"""What of an event stands elsewhere: its moments, and what the run's end rests on."""
_NOTHING: tuple[object, ...] = (None, "", [], {})
DEEPEST_SHOWN = 20
"""A damaged record may be nested as deep as the parser goes."""
_TOLD_ABOVE = frozenset(
    {"schema", "step", "epoch", "phase", "loss", "last_durable_step", "nonfinite", "steps_per_s"}
    | {"memory_bytes", "memory_anon_bytes", "memory_limit_bytes"}
)
"""What of a health sample stands in lines of its own."""
IN_GROUP = "all processes, by the control group"
_COUNTED = frozenset({"memory_bytes", "memory_anon_bytes", "memory_peak_bytes", "cpu_s", "tasks"})
"""What of a control group's counters stands in lines of its own, or was read after all had ended."""
_SHOWN_OTHERWISE = frozenset(
    {"usage"}
    | {"schema", "kind", "outcome", "exit_code", "evidence", "ending", "reason", "status", "refusal", "warnings"}
    | {"request", "at", "ended_at", "started_at", "duration_s", "final_cards", "stop", "failure_class", "checkpoints"}
    | {"artifacts"}
)


def _end(dossier: Dossier) -> Ended | None:
    """How it ended, when the supervisor has committed an end."""
    state = None if dossier.committed is None else dossier.committed.state
    return state if isinstance(state, Ended) else None


def describe_stall(run_id: str, events: Sequence[Facts], *, ended: bool) -> list[tuple[str, object]]:
    """What its supervisor said of a live run that stands still; nothing when it goes on, or has ended."""
    said: dict[str, Facts] = {}
    for event in events:
        if event.get("event") in ("stalled", "recovered"):
            said.clear()
        if event.get("event") in ("stalled", "diagnosed"):
            said[str(event["event"])] = event
    if ended or "stalled" not in said:
        return []
    stall, found = said["stalled"], said.get("diagnosed", {}).get("data") or {}
    lines: list[tuple[str, object]] = [("seen", f"{(stall.get('data') or {}).get('what')}, at {stall.get('utc')}")]
    if found.get("class"):
        lines += [("class", f"{found['class']} ({found.get('confidence')})"), ("do", found.get("action"))]
    return [*lines, ("look", f"holdfast diagnose {run_id}")]


def describe_stale_lease(events: Sequence[Facts], *, ended: bool) -> list[tuple[str, object]]:
    """What its supervisor said of a lease record that others read and that it cannot renew; nothing when it can."""
    last = next((event for event in reversed(events) if str(event.get("event")).startswith("lease_record_")), {})
    if ended or last.get("event") != "lease_record_stale":
        return []
    reason = (last.get("data") or {}).get("reason")
    return [("warning", f"others do not see all that is so of its lease: {reason}, since {last.get('utc')}")]


def describe_git(git: Facts) -> str:
    """The commit that the code was at, in words."""
    if not git.get("commit"):
        return f"no commit is recorded{': ' + str(git['note']) if git.get('note') else ''}"
    dirty = {True: "with changes", False: "clean", None: "changes unknown"}[git.get("dirty")]
    if untracked := [one_line(str(name), LONGEST_UNTRACKED) for name in git.get("untracked") or ()]:
        more = ", ..." if len(untracked) > MOST_UNTRACKED else ""
        unknown = f"files that git does not know, not recorded: {', '.join(untracked[:MOST_UNTRACKED])}{more}"
        dirty = f"{dirty}; {unknown}" if git.get("diff") or git.get("note") else f"clean but for {unknown}"
    return f"{git['commit']} ({git.get('branch') or 'no branch'}, {dirty})"


def print_dossier(dossier: Dossier, *, environment: bool, every_event: bool) -> None:
    """Print everything for a person, section by section; empty sections are left out."""
    view = dossier
    heading(clean(f"{view.run_id}: {view.condition}" + (f" (exit {view.exit_code})" if view.over else "")))
    pairs(_state_lines(dossier), indent=2)
    _section("it stands still", describe_stall(dossier.run_id, dossier.events, ended=dossier.ended))
    _section("lease", describe_stale_lease(dossier.events, ended=dossier.ended))
    if dossier.lost_output is not None and not dossier.ended:
        _section("output", [("warning", dossier.lost_output.describe())])
    _section("messages", [("warning", line) for line in dossier.undelivered])
    _section("in doubt" if dossier.exit_code == 0 else "failure", _failure_lines(dossier))
    _section("job", _job_lines(dossier))
    _section("where and how", _place_lines(dossier, environment=environment))
    _section("nodes", _node_lines(dossier))
    if dossier.phases:
        heading("phases")
        rows = [
            (item["phase"], item["since"], None if item["seconds"] is None else format_duration(item["seconds"]))
            for item in dossier.phases
        ]
        table(("phase", "since", "took"), rows)
    _section("progress", _progress_lines(dossier))
    _print_findings("preflight", dossier.preflight, told=(view.note, _action(dossier)))
    _print_findings("postflight", dossier.postflight, told=(view.note, _action(dossier)))
    _section("end", _end_lines(dossier))
    if environment:
        values = view.manifest.get("environment")
        known: list[tuple[str, object]] = sorted(values.items()) if isinstance(values, dict) else []
        _section("environment (allow-listed, as recorded)", known or [("", "not recorded")])
    events = dossier.events if every_event else dossier.events[-LAST_EVENTS:]
    if events:
        heading("events" if every_event else f"last events of {len(dossier.events)}")
        for event in events:
            text = _brief(event.get("data") if every_event else _list_plain(event.get("data")))
            cut = text if every_event or len(text) <= EVENT_CHARS else text[:EVENT_CHARS] + "..."
            print(clean(f"  {event.get('utc')}  {event.get('event')}  {cut}".rstrip()))
    files = [(file.name, f"{file.path} ({format_bytes(file.bytes)})") for file in dossier.files]
    _section("files", [("run", view.run_dir), ("attempt", f"{view.run_dir}/attempts/{view.attempt}"), *files])


def _list_plain(data: object) -> object:
    """What is short to read of an event: no records within it, and no moments, of which its own stands before it."""
    if not isinstance(data, dict):
        return data
    return {
        name: value
        for name, value in data.items()
        if name not in EVENT_TOLD
        and not isinstance(value, dict)
        and not (isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value))
    }


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
    end = _end(dossier)
    told = f"{dossier.note} {'' if end is None or end.refusal is None else end.refusal.message}".replace(":", "")
    seen = [clue.text for clue in failure.evidence_for if clue.text.replace(":", "") not in told]
    lines.append(("seen", "\n".join(seen)))
    if failure.unknown:
        lines.append(("not readable", f"{len(failure.unknown)} things: holdfast diagnose {dossier.run_id}"))
    lines += [("explain", f"holdfast explain {gotcha}") for gotcha in failure.gotchas]
    # Its own last lines stand in the note, not here.
    output = f"holdfast logs -n 20 {dossier.run_id}" if end and not end.refusal else None
    return [*lines, ("do", failure.action), ("output", output)]


def _state_lines(dossier: Dossier) -> list[tuple[str, object]]:
    view, seen = dossier, dossier.observed
    lines: list[tuple[str, object]] = [("why", view.note)] if view.note else []
    if view.desired is not None:
        reason = f" ({view.desired.reason})" if view.desired.reason else ""
        lines.append(("wanted", f"{view.desired.kind.value} by {view.desired.by} at {view.desired.at}{reason}"))
    if view.committed is not None:
        kind = type(view.committed.state).__name__.lower()
        updated = view.committed.updated_at or view.committed.created_at
        lines.append(("last written", f"{kind}, version {view.committed.version}, at {updated}"))
    reach, host = view.reachability.reach.value, view.reachability.host
    where = "here" if reach == "here" else f"{reach.replace('_', ' ')}: {host}"
    lines.append(("seen", f"{seen.at}, {where}{', rebooted since' if seen.rebooted else ''}"))
    if not view.over and view.committed is not None and not view.condition.startswith("pending"):
        lines.append(("supervisor", _describe_process(seen.supervisor.value, seen.supervisor_pid)))
        lines.append(("keeper", _describe_process(seen.keeper.value, seen.keeper_pid)))
        lines.append(("job", _describe_process(seen.job.value, seen.job_pid)))
    elif not view.over and seen.supervisor.value == "alive":
        lines.append(("supervisor", _describe_process(seen.supervisor.value, seen.supervisor_pid)))
    if view.container is not None:
        inside = ", ".join(f"{one.name} {one.pid} (inside {one.inner_pid})" for one in view.container.processes[:8])
        lines.append(("container", f"{view.container.runtime} {view.container.id[:12]}, {view.container.digest}"))
        if view.container.paused:
            words = f"{view.container.runtime} unpause {view.container.id[:12]}, or holdfast stop"
            lines.append(("paused", f"by {view.container.runtime}: nothing inside moves until {words}"))
        lines += [("inside", inside)] if inside else []
    if len(view.attempts) > 1:
        shown = view.attempts[-1]
        each = [
            f"{item['attempt']} {item['condition']}{' (this)' if item is shown else ''}"
            for item in sorted(view.attempts, key=lambda item: int(item["attempt"]))
        ]
        lines.append(("attempts", ", ".join(each)))
    if queued := _describe_job(dossier):
        lines.append(("queued as", queued))
    lines += [("unreadable", f"{item.path}: {item.reason}") for item in view.unreadable]
    return lines


def _describe_job(dossier: Dossier) -> str | None:
    """The job of the queue that the run is of; None for a run of its own."""
    job = dossier.origin.get("queued")
    if not isinstance(job, dict) or not job.get("name"):
        return None
    group = job.get("group")
    label = str(job["name"]) if group in (None, DEFAULT_GROUP) else f"{group}/{job['name']}"
    return f"{label} of the queue  (holdfast queue show {label})"


def _describe_process(presence: str, pid: int | None) -> str:
    return presence if pid is None else f"{presence} (pid {pid})"


def _job_hash(text: object, *, changed: bool) -> object:
    """That of the job as it was handed in: what this attempt runs was changed since, so it has not that hash."""
    return f"{text} (of the job as handed in)" if text and changed else text


def _name_author(record: Mapping[str, object]) -> str | None:
    """Who asked for it: of a run that was ordered from elsewhere the person there."""
    user, words = record.get("user"), _words(record.get("argv"))
    author = record.get("ordered_by")
    whose = f"{author} (as {user})" if author else user
    return f"{whose} with {words}" if user else None


def _job_lines(dossier: Dossier) -> list[tuple[str, object]]:
    record, manifest = dossier.origin, dossier.manifest
    spec = dossier.job
    snapshot = record.get("snapshot")
    # What this attempt starts from, else what the run was made with.
    copies = manifest.get("code") or (snapshot.get("files") if isinstance(snapshot, dict) else None)
    # Over several nodes it is what starts the job's command on each of them.
    ran = None if dossier.nodes else manifest.get("command")
    lines: list[tuple[str, object]] = [
        ("command", _words(ran) or _words(spec.get("command"))),
        ("in", spec.get("workdir")),
        ("asked by", _name_author(record)),
        ("job hash", _job_hash(record.get("job_sha256"), changed=bool(dossier.changed))),
        ("code", describe_git(dossier.git) if record else None),
        ("seed", dossier.seed),
        ("determinism", dossier.determinism),
    ]
    changes = [KeyChange(str(item.get("key")), item.get("before"), item.get("after")) for item in dossier.changed]
    lines.append(("changed", "\n".join(describe_changes(changes))))
    for copy in copies if isinstance(copies, list) else []:
        if isinstance(copy, dict):
            where = copy.get("copy") or f"not copied: {copy.get('note')}"
            lines.append((str(copy.get("role")), f"{copy.get('source')} -> {where}, sha256 {copy.get('sha256')}"))
    return lines


def _place_lines(dossier: Dossier, *, environment: bool) -> list[tuple[str, object]]:
    manifest = dossier.manifest
    containment = manifest.get("containment")
    words = [containment.get("level"), containment.get("why")] if isinstance(containment, dict) else []
    level = ": ".join(str(word) for word in dict.fromkeys(words) if word) or None
    lines: list[tuple[str, object]] = [
        ("host", dossier.reachability.host),
        ("cards", _describe_cards(dossier)),
        ("placed", _describe_placement(dossier)),
        ("contained by", level),
        ("stop grace", format_duration(dossier.grace_s)),
        ("time limit", "\n".join(map(_describe_time, dossier.time_limits)) or "none"),
    ]
    limits = manifest.get("limits")
    held = [limit for limit in limits if isinstance(limit, dict)] if isinstance(limits, list) else []
    lines += [(f"limit {limit.get('name')}", describe_limit(limit)) for limit in held]
    if not limits and manifest:
        lines.append(("limits", "none asked for"))
    added = manifest.get("environment_added")
    if isinstance(added, (dict, list)) and added:
        count = format_count(len(added), "variable")
        lines.append(("env added", ", ".join(map(str, added)) if environment else f"{count} (--env names them)"))
    return lines


def _node_lines(dossier: Dossier) -> list[tuple[str, object]]:
    """Each node of a run over several; whether the leader still tells what is so, the run's state says."""
    record = dossier.nodes
    if record is None:
        return []
    lines: list[tuple[str, object]] = []
    for node in record.nodes:
        code = "" if node.code is None else f", exit code {node.code}"
        first = "; failed first" if record.first is not None and record.first.node == node.node else ""
        lines.append(
            (f"node {node.node}", f"{node.host or '?'}, {node.state.value} since {node.since[:19]}Z{code}{first}")
        )
    told = [("failed first", record.first.words)] if record.first is not None else []
    return [
        *lines,
        *told,
        ("they differ", "\n".join(record.warnings)),
        ("rendezvous", f"{record.address}:{record.port}"),
    ]


def _describe_time(limit: TimeLimit) -> str:
    until = f", until {limit.until[:19]}Z" if limit.until is not None else ""
    return f"{limit.name} {format_duration(limit.seconds)}{until}"


def _describe_placement(dossier: Dossier) -> str | None:
    """Where the queue had this attempt run beyond what its job says; None when nowhere."""
    placement = dossier.placement
    if placement is None:
        return None
    words = ["on cards that it shares with nobody"] if placement.alone else []
    if placement.min_total_bytes is not None:
        words.append(f"on cards with more than {format_bytes(placement.min_total_bytes)}")
    return f"{' and '.join(words) or 'by the queue'}: {placement.why}"


def _describe_cards(dossier: Dossier) -> str:
    devices = dossier.devices
    if not devices:
        return "none"
    uuids = ", ".join(
        str(device.get("slice_uuid") or device.get("card_uuid") or device.get("uuid")) for device in devices
    )
    return f"{dossier.cards}: {uuids}"


def _progress_lines(dossier: Dossier) -> list[tuple[str, object]]:
    beat = dossier.heartbeat
    sample = {key: value for key, value in dossier.health.items() if key not in _TOLD_ABOVE and value not in (None, [])}
    lines: list[tuple[str, object]] = []
    stands = describe_stall(dossier.run_id, dossier.events, ended=dossier.ended)
    left_s = None if dossier.ended or stands else estimate_left(beat, epoch_s())
    told = say_progress(beat.get("step"), beat.get("planned_steps"), beat.get("steps_per_s"), left_s)
    loss, curve = beat.get("loss"), draw_curve(dossier.loss_curve)
    last = f"{loss:.6g}" if isinstance(loss, (int, float)) else ""
    lines += [("done", told), ("heartbeat", describe_beat(beat))]
    lines.append((dossier.loss_name or "loss", "  ".join(filter(None, (curve, last)))))
    durable = dossier.durable_step
    if durable is not None:
        newest = dossier.attempt == max((item.get("attempt") or 0 for item in dossier.attempts), default=0)
        lines.append(("durable step", f"{durable}: a restart goes on from here" if newest else durable))
    if sample:
        disks = sample.pop("disks", None)
        lines += [
            ("memory", _describe_memory(dossier.health)),
            ("seen", _brief(sample)),
            ("disks", _describe_disks(disks)),
        ]
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


def _describe_memory(sample: Facts) -> str | None:
    """The tree's memory against its limit, file cache left out where that is known; None when nothing is known."""
    used, limit = sample.get("memory_anon_bytes") or sample.get("memory_bytes"), sample.get("memory_limit_bytes")
    if not isinstance(used, int):
        return None
    if not isinstance(limit, int) or limit <= 0:
        return f"{format_bytes(used)}, no limit"
    return f"{format_bytes(used)} of {format_bytes(limit)} ({100 * used / limit:.0f} %)"


def _action(dossier: Dossier) -> str:
    return "" if dossier.failure is None else dossier.failure.action


def _print_findings(title: str, findings: Sequence[Facts], *, told: tuple[str, str]) -> None:
    """What was not passed; nothing is said again that stands above, in the reason and the action that are `told`."""
    reason, action = told
    if not findings:
        return
    levels = [str(item.get("level")) for item in findings]
    counts = ", ".join(
        f"{levels.count(level)} {level}" for level in ("pass", "unknown", "warn", "fail") if level in levels
    )
    heading(f"{title}: {counts}")
    for item in findings:
        evidence, remedy = str(item.get("evidence") or ""), str(item.get("remedy") or "")
        is_told = bool(evidence) and evidence in reason
        do = "" if is_told and remedy in action else remedy
        if item.get("level") == "pass" or (is_told and not do):
            continue
        words = "" if is_told else f": {evidence}"
        print(clean(f"  {item.get('level'):<7}  {item.get('id')} {item.get('subject')}{words}"))
        if do:
            print(clean(f"           do: {do}"))


def _end_lines(dossier: Dossier) -> list[tuple[str, object]]:
    end, status, record = _end(dossier), dossier.status, dossier.exit
    if end is None and not record:
        return []
    lines: list[tuple[str, object]] = []
    if end is not None:
        lines += [
            ("at", end.at),
            ("outcome", f"{end.outcome.value} (exit {end.exit_code})"),
            ("evidence", None if end.evidence == dossier.note else end.evidence),
        ]
        if end.stop is not None:
            sent = end.request is not None or (end.status is not None and end.status.asked)
            lines.append(("it left", describe_leaving(end.stop, sent=sent)))
        seconds = dossier.duration_s
        if seconds is not None:
            lines.append(("job ran", format_duration(seconds)))
        if end.refusal is not None and dossier.failure is None:
            lines += [("refused", end.refusal.message), ("remedy", end.refusal.hint)]
        lines += [("warning", warning) for warning in end.warnings]
        lines.append(("queue", dossier.requeue))
    if status:
        code, number = status.get("code"), status.get("signal")
        lines.append(("status", f"exit code {code}" if code is not None else f"signal {number}"))
    usage = record.get("usage")
    counted = usage if isinstance(usage, dict) else {}
    lines += [("cpu", _describe_cpu(status, counted)), ("peak memory", _describe_peak(status, counted))]
    saved = record.get("checkpoints")
    names = [str(item.get("name")) for item in saved if isinstance(item, dict)] if isinstance(saved, list) else []
    lines.append(("checkpoints", ", ".join(name for name in names if not name.startswith("."))))
    lines.append(("artifacts", _list_files(record.get("artifacts"), f"holdfast files {dossier.run_id} artifacts")))
    # What was in use after the end is nothing, and what is not told here was none.
    rest = {key: value for key, value in counted.items() if value and key not in _COUNTED}
    lines.append(("usage", _brief(rest)))
    lines += [
        (key, _brief(value))
        for key, value in record.items()
        if key not in _SHOWN_OTHERWISE and value not in (None, [], {})
    ]
    return lines


def _list_files(found: object, every: str) -> str:
    """A line for each file of a directory as it was recorded: its name, size and time; the first ones of many."""
    files = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
    lines = []
    for item in files[:MOST_FILES]:
        size, changed = item.get("bytes"), item.get("modified")
        words = [one_line(str(item.get("name")), LONGEST_FILE)]
        words += [format_bytes(size)] if isinstance(size, int) else []
        words += [format_utc(changed)] if isinstance(changed, (int, float)) else []
        lines.append("  ".join(words))
    return "\n".join(lines + ([f"and {len(files) - MOST_FILES} more: {every}"] if len(files) > MOST_FILES else []))


def _describe_cpu(status: Facts, usage: Facts) -> str:
    """The CPU time, of which of the two that are measured."""
    words = (
        [f"{status.get('user_s')} s user, {status.get('system_s')} s system (its first process and children)"]
        if status
        else []
    )
    total = usage.get("cpu_s")
    words += [f"{total:.4g} s ({IN_GROUP})"] if isinstance(total, (int, float)) and total > 0 else []
    return "; ".join(words)


def _describe_peak(status: Facts, usage: Facts) -> str:
    """The most memory that was in use, of which of the two that are measured."""
    peaks = (
        ("its largest process, with what it shares", status.get("max_rss_bytes")),
        (IN_GROUP, usage.get("memory_peak_bytes")),
    )
    return "; ".join(f"{format_bytes(peak)} ({what})" for what, peak in peaks if isinstance(peak, int) and peak > 0)


def _words(value: object) -> str:
    return shlex.join(map(str, value)) if isinstance(value, list) else ""


def _brief(value: object, depth: int = 0) -> str:
    """A JSON value in one line; what is not known is left out of mappings, what is nested too deep is cut."""
    if isinstance(value, (dict, list)) and depth > DEEPEST_SHOWN:
        return "..."
    if isinstance(value, dict):
        return ", ".join(_brief_fact(str(key), item, depth) for key, item in value.items() if item not in _NOTHING)
    if isinstance(value, list):
        return "[" + ", ".join(_brief(item, depth + 1) for item in value) + "]"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
    return str(value)


def _brief_fact(key: str, value: object, depth: int) -> str:
    if key.endswith("_bytes") and isinstance(value, int):
        return f"{key.removesuffix('_bytes')} {format_bytes(value)}"
    return f"{key} {_brief(value, depth + 1)}"
