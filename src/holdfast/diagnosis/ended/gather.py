"""Everything about one ended or vanished attempt, from its directory and the box; reads, never judges, never raises.

Each file may be missing, half written, of a newer version or not text at all: then what it would have told is unread,
and `problems` says which file that was.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from holdfast.core.job.redact import redact_text
from holdfast.core.run.scripts import count_closing_lines, find_shell_script, find_shell_text
from holdfast.diagnosis.evidence import Detection, LogFacts, Reading
from holdfast.diagnosis.logs.attribute import judge_log
from holdfast.diagnosis.logs.pattern import Pattern
from holdfast.diagnosis.logs.rules import read_rules
from holdfast.diagnosis.logs.scan import read_log
from holdfast.diagnosis.python_stacks import parse_dump
from holdfast.host.clock import epoch_s, parse_utc
from holdfast.host.files import fallback, files
from holdfast.host.files.job_change import find_job, has_checkpoint, read_job_change
from holdfast.host.job.output import read_lost_output
from holdfast.model import wire
from holdfast.model.finding import Finding
from holdfast.model.pattern import compile_later
from holdfast.model.record import replace
from holdfast.model.run import Ended
from holdfast.model.units import format_bytes
from holdfast.model.wire import as_number, as_whole

from .compare import (
    as_cards,
    as_object,
    as_objects,
    compare_boots,
    compare_disks,
    compare_field,
    compare_levels,
    decode_killers,
    find_cards,
    find_own_kills,
    find_unread_cards,
    kernel_begin,
    kernel_end,
    subtract_counter,
)
from .detect.signals import find_signal
from .driver_xids import decode_severities, read_heard
from .evidence import EndedEvidence
from .look import KMSG, decode_kernel, look_at_box

Facts = dict[str, Any]
TAIL_BYTES = 64 * 1024
MOST_LOG_BYTES = 256 * 1024**2
"""More than the default `output_max`. Of a longer log, which a job file can ask for, half from each end: reading
must not cost the verdict what the counters say. The slowest log, random bytes, takes 30 ns a byte."""
DYING_S = 10.0
"""A process that is killed ends when its memory is given back: seconds for hundreds of GiB."""
MOST_TENANTS = 5
MOST_STOOD = 5
KILLING = (9, 15)
SCRIPT_BYTES = 64 * 1024
_TEE = compile_later(r"\|&?\s*(?:[^\s|]*/)?tee\b")
"""The directory before `tee` has no bar: a script is 64 KB of anything, and each bar may begin a match."""
_LAUNCHER = compile_later(
    r"\b(?:torchrun|torch\.distributed|mpirun|mpiexec|srun|jsrun|aprun|accelerate|deepspeed|horovodrun)\b"
)
_OF_RANKS = ("RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_ADDR")


class AttemptFiles:
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
        try:
            change = read_job_change(self.run_dir, self.number)[1]
        except (OSError, wire.WireError) as error:
            self.problems.append(f"{wire.JOB}: {error}")
            change = {}
        return find_job(record, change)

    def read_findings(self) -> tuple[Finding, ...]:
        """What postflight found."""
        found = []
        for item in as_objects(self.read(wire.POSTFLIGHT).get("findings")):
            try:
                found.append(wire.decode(Finding, item))
            except wire.WireError as error:
                self.problems.append(f"{wire.POSTFLIGHT}: {error}")
        return tuple(found)

    def read_samples(self) -> list[Facts]:
        """The last health samples whose lines are whole, the newest first; none of what cannot be read."""
        path = f"{self.directory}/{wire.HEALTH}"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return []
        try:
            size = os.fstat(descriptor).st_size
            lines = os.pread(descriptor, TAIL_BYTES, max(0, size - TAIL_BYTES)).split(b"\n")[:-1]
        except OSError:
            return []
        finally:
            os.close(descriptor)
        found = []
        for line in reversed(lines):
            try:
                found.append(wire.parse_object(line, wire.HEALTH))
            except wire.WireError:
                break
        return found


def gather_evidence(
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
    source = AttemptFiles(run_dir, attempt)
    manifest = source.read(wire.MANIFEST, required=ended.refusal is None)
    facts = dict(record) if record is not None else source.read(wire.EXIT, required=True)
    baseline = as_object(manifest.get("baseline"))
    began_s, ended_s = _epoch(ended.started_at), _epoch(_ended_at(ended))
    if aftermath is None:
        aftermath = _look(ended, manifest, baseline, kernel_source)
    log, words = _read_words(source)
    usage = as_object(facts.get("usage"))
    samples = source.read_samples()
    sample = samples[0] if samples else {}
    job = source.read_job()
    command, shell = _read_shell(job)
    leased = {str(card.get("uuid")) for card in as_objects(manifest.get("cards"))}
    final = as_object(facts.get("final_cards"))
    looked = aftermath.get("epoch_s")
    evidence = EndedEvidence(
        run_id=source.run_id,
        attempt=attempt,
        ended=ended,
        rebooted=compare_boots(manifest, baseline, aftermath),
        init_restarted=compare_field(baseline, aftermath, "init_start_ticks"),
        own_kills=find_own_kills(usage, as_object(manifest.get("cgroup")), sample),
        host_kills=subtract_counter(baseline, aftermath, "oom_kills_since_boot"),
        levels=compare_levels(baseline, aftermath, as_object(manifest.get("cgroup"))),
        peak_bytes=as_whole(usage.get("memory_peak_bytes")) or as_whole(sample.get("memory_bytes")),
        limit_bytes=as_whole(usage.get("memory_limit_bytes")) or as_whole(sample.get("memory_limit_bytes")),
        kernel=decode_kernel(aftermath.get("kernel")),
        kernel_from_s=kernel_begin(baseline, aftermath),
        kernel_until_s=kernel_end(aftermath, ended_s),
        killers=decode_killers(aftermath.get("killers")),
        log=log,
        words=words,
        disks=compare_disks(baseline, aftermath),
        cards=find_cards(final, manifest),
        cards_before=tuple(as_cards(manifest.get("cards"))),
        cards_unread=find_unread_cards(final, manifest),
        tenants=_find_tenants(final, leased, source.run_id),
        heartbeat=wire.clean_heartbeat(source.read(wire.HEARTBEAT)),
        session=as_object(baseline.get("session")),
        rlimits=as_object(baseline.get("rlimits")),
        scheduler=_find_scheduler(as_object(manifest.get("environment"))),
        findings=source.read_findings(),
        pids=_find_pids(manifest),
        group=str(as_object(manifest.get("cgroup")).get("name") or f"{source.run_id}.{attempt}"),
        duration_s=None if began_s is None or ended_s is None else max(0.0, ended_s - began_s),
        expected_s=as_number(job.get("expected_s")),
        looked_s=looked - ended_s if isinstance(looked, (int, float)) and ended_s is not None else None,
        earlier_kills=_find_earlier_kills(samples, ended_s),
        silent_supervisor=_is_empty(f"{source.directory}/{wire.SUPERVISOR_LOG}"),
        expandable=_has_expandable(as_object(manifest.get("environment"))),
        tasks_limit=as_whole(as_object(job.get("limits")).get("tasks")),
        files_limit=as_whole(as_object(job.get("limits")).get("open_files")),
        problems=tuple(source.problems),
        checkpoint=has_checkpoint(source.run_dir, job),
        has_cards=bool(manifest["cards"]) if isinstance(manifest.get("cards"), list) else None,
        piped=_TEE.search(command) is not None,
        closing_lines=count_closing_lines(shell),
        stood=_read_stood(source.directory),
        leftovers=_read_leftovers(f"{source.directory}/{wire.EVENTS}"),
        heard=read_heard(f"{source.directory}/{wire.EVENTS}"),
        xid_severities=decode_severities(baseline.get("xids")),
        time_limit_s=as_number(as_object(job.get("timeouts")).get("total_s")),
        ranks=_has_ranks(command, job, as_object(manifest.get("environment"))),
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


def _find_earlier_kills(samples: list[Facts], ended_s: float | None) -> int | None:
    """What the run's group had counted when a large process that was killed then would have been gone at the end."""
    for sample in samples:
        at_s = _epoch(str(sample.get("utc")))
        if ended_s is not None and at_s is not None and ended_s - at_s >= DYING_S:
            return as_whole(sample.get("oom_kills"))
    return None


def _ended_at(ended: Ended) -> str:
    return ended.status.ended_at if ended.status is not None and ended.status.ended_at else ended.at


def _epoch(text: str | None) -> float | None:
    try:
        return parse_utc(text) if text else None
    except ValueError:
        return None


# ------------------------------------------------------------------------------------------------------ the job's words


def _read_words(source: AttemptFiles) -> tuple[Reading[LogFacts], tuple[Detection, ...]]:
    log = read_log(f"{source.directory}/{wire.OUTPUT}", rules=_read_rules(source), limit_bytes=MOST_LOG_BYTES)
    if log.value is not None and read_lost_output(source.run_id, source.number, source.directory) is not None:
        log = Reading(replace(log.value, whole=False))
    return log, judge_log(log)


def _read_rules(source: AttemptFiles) -> tuple[Pattern, ...]:
    """The user's own rules; those that cannot be used are said, and ours still are."""
    rules = read_rules(os.environ)
    if not rules.known:
        source.problems.append(f"your failure rules are not used: {rules.unread}")
    return rules.value or ()


# ----------------------------------------------------------------------------------------------------- who and where


def _find_tenants(final: Facts, leased: set[str], run_id: str) -> tuple[str, ...]:
    """Processes of others on the run's cards when it had ended, as words."""
    found = []
    for card in as_objects(final.get("cards")):
        if str(card.get("uuid")) not in leased:
            continue
        for process in as_objects(card.get("processes")):
            if process.get("run_id") == run_id:
                continue
            used = as_whole(process.get("used_bytes"))
            words = [
                f"pid {process.get('pid')}",
                str(process.get("user") or ""),
                "" if used is None else format_bytes(used),
            ]
            command = redact_text(str(process.get("command") or ""))[:80]
            found.append(" ".join(word for word in (*words, command) if word) + f" on card {card.get('index')}")
    return tuple(found[:MOST_TENANTS])


def _read_shell(job: Facts) -> tuple[str, str]:
    """The command as a text with the shell script that it names; and what a shell runs of it.

    That is empty without a shell, and where the shell was told to leave when a command fails (``bash -e run.sh``).
    """
    told = job.get("command")
    command = tuple(str(word) for word in told) if isinstance(told, list) else ()
    script = find_shell_script(command)
    text, body = " ".join(command), find_shell_text(command)
    if script is not None:
        path = os.path.join(str(job.get("workdir") or "/"), command[script.index])
        with contextlib.suppress(OSError):
            body = files.read_bytes(path, limit=SCRIPT_BYTES).decode("utf-8", "replace")
            text += body
        if any("e" in option for option in command[1 : script.index]):
            body = ""
    return text, body


def _has_ranks(command: str, job: Facts, environment: Facts) -> bool:
    """Whether a job was meant to have ranks: by its nodes, what launches it, or what its environment says."""
    nodes = as_whole(job.get("nodes")) or 1
    return nodes > 1 or _LAUNCHER.search(command) is not None or any(map(environment.get, _OF_RANKS))


def _read_leftovers(path: str) -> tuple[str, ...]:
    """Processes that the job had just begun when its leader left, as the supervisor saw and ended them."""
    try:
        lines = [line for line in files.read_last_lines(path) if b'"leftovers"' in line]
        young = wire.parse_object(lines[-1], wire.EVENTS)["data"].get("young") if lines else None
    except (OSError, ValueError, KeyError, AttributeError):
        return ()
    return tuple(str(name)[:100] for name in young[:MOST_TENANTS]) if isinstance(young, list) else ()


def _read_stood(directory: str) -> Reading[tuple[str, ...]]:
    """Where its processes stood when their stacks were last asked for, by the supervisor; only where all answered."""
    try:
        lines = [line for line in files.read_last_lines(f"{directory}/{wire.EVENTS}") if b'"stacks"' in line]
        events = [wire.parse_object(line, wire.EVENTS) for line in lines]
        told = next((as_object(event.get("data")) for event in reversed(events) if event.get("event") == "stacks"), {})
        names = sorted(name for name in os.listdir(directory) if name.startswith("stacks.") and name.endswith(".txt"))
    except (OSError, wire.WireError) as error:
        return Reading(unread=str(error))
    asked, answered = as_whole(told.get("asked")) or 0, as_whole(told.get("answered")) or 0
    if not asked:
        return Reading(unread="no process offered its stacks (holdfast's training library does)")
    if answered < asked:
        return Reading(unread=f"{asked - answered} of {asked} processes did not write their stacks")
    dumps = [parse_dump(0, files.read_tail(f"{directory}/{name}", TAIL_BYTES).decode("utf-8", "replace"))
             for name in names[:MOST_STOOD]]  # fmt: skip
    return Reading(tuple(dict.fromkeys(dump.top for dump in dumps if dump.top)))


def _has_expandable(environment: Facts) -> bool:
    """Whether torch's allocator was told to use expandable segments. Source: torch, ``PYTORCH_CUDA_ALLOC_CONF``."""
    told = (
        str(value) for name, value in environment.items() if name.startswith("PYTORCH_") and name.endswith("ALLOC_CONF")
    )
    return any("expandable_segments:True" in value for value in told)


def _is_empty(path: str) -> bool:
    """Whether a file is there and has nothing."""
    try:
        return os.stat(path).st_size == 0
    except OSError:
        return False


def _find_scheduler(environment: Facts) -> str:
    for name, words in (("SLURM_JOB_ID", "Slurm job"), ("PBS_JOBID", "PBS job"), ("LSB_JOBID", "LSF job")):
        if environment.get(name):
            return f"{words} {environment[name]}"
    return ""


def _find_pids(manifest: Facts) -> frozenset[int]:
    leader = as_object(as_object(manifest.get("job")).get("process")).get("pid")
    return frozenset([leader]) if isinstance(leader, int) else frozenset()
