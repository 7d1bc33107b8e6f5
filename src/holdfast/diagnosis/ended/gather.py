"""Everything about one ended or vanished attempt, from its directory and the box; reads, never judges, never raises.

Each file may be missing, half written, of a newer version or not text at all: then what it would have told is unread,
and `problems` says which file that was.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ...core.redact import redact_text
from ...host import fallback, files
from ...host.clock import epoch_s, parse_utc
from ...model import wire
from ...model.finding import Finding
from ...model.units import format_bytes
from ..evidence import NOT_LOOKED, LogFacts, Reading
from .evidence import DiskChange, EndedEvidence, LevelChange
from .look import KMSG, decode_kernel, look_at_box, read_own_group
from .signals import find_signal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...model.run import Ended
    from ..evidence import Detection
    from ..logs.pattern import Pattern

Facts = dict[str, Any]
KERNEL_SLACK_S = 60.0
"""The log's clock is not corrected as the wall clock is; over weeks they part by seconds (printk: local_clock)."""
TAIL_BYTES = 64 * 1024
MOST_TENANTS = 5
KILLING = (9, 15)


class Attempt:
    """The files of one attempt, wherever they had to be put; what cannot be read is noted and empty."""

    def __init__(self, run_dir: str, attempt: int) -> None:
        """Nothing is read yet."""
        self.run_dir, self.number = run_dir.rstrip("/"), attempt
        self.run_id = os.path.basename(self.run_dir)
        self.directory = wire.attempt_dir(self.run_dir, attempt)
        self.problems: list[str] = []

    def read(self, name: str, *, required: bool = False) -> Facts:
        """One JSON file of the attempt."""
        try:
            return wire.parse_object(fallback.read(self.run_id, self.number, f"{self.directory}/{name}"), name)
        except FileNotFoundError:
            if required:
                self.problems.append(f"{name} is not there")
        except (OSError, wire.WireError) as error:
            self.problems.append(f"{name}: {error}")
        return {}

    def read_job(self) -> Facts:
        """The job as it was asked for."""
        try:
            record = wire.parse_object(files.read_bytes(f"{self.run_dir}/{wire.RUN}"), wire.RUN)
        except (OSError, wire.WireError) as error:
            self.problems.append(f"{wire.RUN}: {error}")
            return {}
        return _object(record.get("job"))

    def read_findings(self) -> tuple[Finding, ...]:
        """What postflight found."""
        found = []
        for item in _objects(self.read(wire.POSTFLIGHT).get("findings")):
            try:
                found.append(wire.decode(Finding, item))
            except wire.WireError as error:
                self.problems.append(f"{wire.POSTFLIGHT}: {error}")
        return tuple(found)

    def read_last_sample(self) -> Facts:
        """The last whole line of the health samples."""
        path = f"{self.directory}/{wire.HEALTH}"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return {}
        try:
            size = os.fstat(descriptor).st_size
            lines = os.pread(descriptor, TAIL_BYTES, max(0, size - TAIL_BYTES)).split(b"\n")[:-1]
            return wire.parse_object(lines[-1], wire.HEALTH) if lines else {}
        except (OSError, wire.WireError):
            return {}
        finally:
            os.close(descriptor)


def gather(
    run_dir: str,
    attempt: int,
    ended: Ended,
    *,
    record: Mapping[str, Any] | None = None,
    aftermath: Facts | None = None,
    kernel_source: str = KMSG,
) -> tuple[EndedEvidence, Facts]:
    """The evidence, and what the box said (to be kept).

    Args:
        run_dir: The run's directory.
        attempt: The attempt's number.
        ended: How it ended, as far as anybody knows.
        record: The exit record where it is not on disk yet.
        aftermath: What the box said soon after the end, from an earlier look; None: look now.
        kernel_source: Where the kernel's log is read.
    """
    source = Attempt(run_dir, attempt)
    manifest = source.read(wire.MANIFEST, required=ended.refusal is None)
    facts = dict(record) if record is not None else source.read(wire.EXIT, required=True)
    baseline = _object(manifest.get("baseline"))
    began_s, ended_s = _epoch(ended.started_at), _epoch(_ended_at(ended))
    if aftermath is None:
        aftermath = _look(ended, manifest, baseline, kernel_source)
    log, words = _read_words(source)
    usage = _object(facts.get("usage"))
    sample = source.read_last_sample()
    job = source.read_job()
    leased = {str(card.get("uuid")) for card in _objects(manifest.get("cards"))}
    final = _object(facts.get("final_cards"))
    looked = aftermath.get("epoch_s")
    evidence = EndedEvidence(
        run_id=source.run_id,
        attempt=attempt,
        ended=ended,
        rebooted=_compare_boots(manifest, baseline, aftermath),
        init_restarted=_compare(baseline, aftermath, "init_start_ticks"),
        own_kills=_find_own_kills(usage, _object(manifest.get("cgroup")), sample),
        host_kills=_subtract(baseline, aftermath, "oom_kills_since_boot"),
        levels=_compare_levels(baseline, aftermath, _object(manifest.get("cgroup"))),
        peak_bytes=_whole(usage.get("memory_peak_bytes")) or _whole(sample.get("memory_bytes")),
        limit_bytes=_whole(usage.get("memory_limit_bytes")) or _whole(sample.get("memory_limit_bytes")),
        kernel=decode_kernel(aftermath.get("kernel")),
        kernel_from_s=_kernel_begin(baseline, aftermath),
        kernel_until_s=_kernel_end(aftermath, ended_s),
        killers=_decode_killers(aftermath.get("killers")),
        log=log,
        words=words,
        disks=_compare_disks(baseline, aftermath),
        cards=tuple(card for card in _objects(final.get("cards")) if str(card.get("uuid")) in leased),
        cards_before=tuple(_objects(manifest.get("cards"))),
        cards_unread="" if final or not leased else "the cards were not read at the end",
        tenants=_find_tenants(final, leased, source.run_id),
        heartbeat=wire.clean_heartbeat(source.read(wire.HEARTBEAT)),
        session=_object(baseline.get("session")),
        rlimits=_object(baseline.get("rlimits")),
        scheduler=_find_scheduler(_object(manifest.get("environment"))),
        findings=source.read_findings(),
        pids=_find_pids(manifest),
        group=str(_object(manifest.get("cgroup")).get("name") or f"{source.run_id}.{attempt}"),
        duration_s=None if began_s is None or ended_s is None else max(0.0, ended_s - began_s),
        expected_s=_number(job.get("expected_s")),
        looked_s=looked - ended_s if isinstance(looked, (int, float)) and ended_s is not None else None,
        problems=tuple(source.problems),
    )
    return evidence, aftermath


def _look(ended: Ended, manifest: Facts, baseline: Facts, kernel_source: str) -> Facts:
    """The box now; nothing where the attempt ran on another one, or was refused before it could run."""
    host = manifest.get("host")
    if isinstance(host, str) and host != os.uname().nodename:
        return {"elsewhere": f"it ran on {host}, this is {os.uname().nodename}"}
    if ended.refusal is not None:
        return {"elsewhere": "the job never ran"}
    status = ended.status
    ended_s = _epoch(_ended_at(ended)) or epoch_s()
    killed = status is None or find_signal(status.code, status.signal) in KILLING
    return look_at_box(
        baseline, ended_s, _epoch(ended.started_at) or ended_s, killed=killed, kernel_source=kernel_source
    )


def _ended_at(ended: Ended) -> str:
    return ended.status.ended_at if ended.status is not None and ended.status.ended_at else ended.at


def _epoch(text: str | None) -> float | None:
    try:
        return parse_utc(text) if text else None
    except ValueError:
        return None


def _object(value: object) -> Facts:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[Facts]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, (list, tuple)) else []


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


# ------------------------------------------------------------------------------------------------------ the job's words


def _read_words(source: Attempt) -> tuple[Reading[LogFacts], tuple[Detection, ...]]:
    from ..logs.attribute import judge_log
    from ..logs.scan import read_log

    log = read_log(f"{source.directory}/{wire.OUTPUT}", rules=_read_rules(source))
    return log, judge_log(log)


def _read_rules(source: Attempt) -> tuple[Pattern, ...]:
    """The user's own rules; those that cannot be used are said, and ours still are."""
    from ..logs.rules import read_rules

    rules = read_rules(os.environ)
    if not rules.known:
        source.problems.append(f"your failure rules are not used: {rules.unread}")
    return rules.value or ()


# ------------------------------------------------------------------------------------------------ before against after


def _missing(aftermath: Facts, baseline: Facts, what: str) -> str:
    if "elsewhere" in aftermath:
        return str(aftermath["elsewhere"])
    if not baseline:
        return "nothing was written down at launch"
    for side, when in ((baseline, "at launch"), (aftermath, "at the end")):
        reason = _object(side.get("unread")).get(what)
        if reason:
            return f"{reason} ({when})"
    return "it was not read"


def _compare(baseline: Facts, aftermath: Facts, name: str) -> Reading[bool]:
    before, after = baseline.get(name), aftermath.get(name)
    if before is None or after is None:
        return Reading(unread=_missing(aftermath, baseline, name))
    return Reading(before != after)


def _compare_boots(manifest: Facts, baseline: Facts, aftermath: Facts) -> Reading[bool]:
    before, after = baseline.get("boot_id") or manifest.get("boot_id"), aftermath.get("boot_id")
    if not before or not after:
        return Reading(unread=_missing(aftermath, baseline, "boot_id"))
    return Reading(before != after)


def _subtract(baseline: Facts, aftermath: Facts, name: str) -> Reading[int]:
    before, after = _whole(baseline.get(name)), _whole(aftermath.get(name))
    if before is None or after is None:
        return Reading(unread=_missing(aftermath, baseline, name))
    if after < before or _compare_boots({}, baseline, aftermath).value:
        return Reading(unread="the box was started again since: it counts anew")
    return Reading(after - before)


def _find_own_kills(usage: Facts, cgroup: Facts, sample: Facts) -> Reading[int]:
    """OOM kills in the run's own group: as read before it was removed, else as it stands, else as last sampled."""
    kills = _whole(usage.get("oom_kills"))
    if kills is None:
        kills = read_own_group(cgroup)
    if kills is None and (_whole(sample.get("oom_kills")) or 0) > 0:
        kills = _whole(sample.get("oom_kills"))
    if kills is not None:
        return Reading(kills)
    if not cgroup:
        return Reading(unread="the run had no control group of its own that counts")
    return Reading(unread="its control group is gone and nobody read its counters before")


def _compare_levels(baseline: Facts, aftermath: Facts, cgroup: Facts) -> tuple[LevelChange, ...]:
    v1 = _object(cgroup.get("v1"))
    own = {path for path in (cgroup.get("unified"), v1.get("memory")) if isinstance(path, str)}
    now = {level.get("path"): level for level in _objects(aftermath.get("memory_levels"))}
    found = []
    for level in _objects(baseline.get("memory_levels")):
        path = str(level.get("path"))
        if path in own:
            continue  # its counter goes with it: `own_kills`
        kills = _subtract_level(level, now.get(path), aftermath, baseline)
        found.append(LevelChange(path, kills, _whole(level.get("limit_bytes"))))
    return tuple(found)


def _subtract_level(before: Facts, after: Facts | None, aftermath: Facts, baseline: Facts) -> Reading[int]:
    first, last = _whole(before.get("oom_kills")), _whole((after or {}).get("oom_kills"))
    if first is None or last is None or last < first:
        return Reading(unread=_missing(aftermath, baseline, "memory_levels"))
    if _compare_boots({}, baseline, aftermath).value:
        return Reading(unread="the box was started again since")
    return Reading(last - first)


def _compare_disks(baseline: Facts, aftermath: Facts) -> tuple[DiskChange, ...]:
    before = {(disk.get("role"), disk.get("path")): disk for disk in _objects(baseline.get("disks"))}
    found = []
    for disk in _objects(aftermath.get("disks")):
        free = _whole(disk.get("free_bytes"))
        was = _object(before.get((disk.get("role"), disk.get("path"))))
        found.append(
            DiskChange(
                role=str(disk.get("role")),
                path=str(disk.get("path")),
                free_bytes=Reading(free) if free is not None else Reading(unread=str(disk.get("unread") or NOT_LOOKED)),
                free_inodes=_whole(disk.get("free_inodes")),
                total_bytes=_whole(disk.get("total_bytes")),
                read_only=disk.get("read_only") is True,
                was_read_only=was.get("read_only") if isinstance(was.get("read_only"), bool) else None,
            )
        )
    return tuple(found)


def _kernel_begin(baseline: Facts, aftermath: Facts) -> float | None:
    """From when an event is new, in seconds of the log's clock; None when that is not known."""
    since = _number(baseline.get("monotonic_s"))
    # Of another boot, the whole log is newer.
    return None if since is None or _compare_boots({}, baseline, aftermath).value else since - KERNEL_SLACK_S


def _kernel_end(aftermath: Facts, ended_s: float | None) -> float | None:
    now_s, wall_s = _number(aftermath.get("monotonic_s")), _number(aftermath.get("epoch_s"))
    if now_s is None or wall_s is None or ended_s is None:
        return None
    return now_s - (wall_s - ended_s) + KERNEL_SLACK_S


def _decode_killers(facts: object) -> Reading[tuple[str, ...]]:
    if not isinstance(facts, dict):
        return Reading(unread=NOT_LOOKED)
    if facts.get("unread"):
        return Reading(unread=str(facts["unread"]))
    lines = facts.get("lines")
    return Reading(tuple(map(str, lines)) if isinstance(lines, list) else ())


# ----------------------------------------------------------------------------------------------------- who and where


def _find_tenants(final: Facts, leased: set[str], run_id: str) -> tuple[str, ...]:
    """Processes of others on the run's cards when it had ended, as words."""
    found = []
    for card in _objects(final.get("cards")):
        if str(card.get("uuid")) not in leased:
            continue
        for process in _objects(card.get("processes")):
            if process.get("run_id") == run_id:
                continue
            used = _whole(process.get("used_bytes"))
            words = [
                f"pid {process.get('pid')}",
                str(process.get("user") or ""),
                "" if used is None else format_bytes(used),
            ]
            command = redact_text(str(process.get("command") or ""))[:80]
            found.append(" ".join(word for word in (*words, command) if word) + f" on card {card.get('index')}")
    return tuple(found[:MOST_TENANTS])


def _find_scheduler(environment: Facts) -> str:
    for name, words in (("SLURM_JOB_ID", "Slurm job"), ("PBS_JOBID", "PBS job"), ("LSB_JOBID", "LSF job")):
        if environment.get(name):
            return f"{words} {environment[name]}"
    return ""


def _find_pids(manifest: Facts) -> frozenset[int]:
    leader = _object(_object(manifest.get("job")).get("process")).get("pid")
    return frozenset([leader]) if isinstance(leader, int) else frozenset()
