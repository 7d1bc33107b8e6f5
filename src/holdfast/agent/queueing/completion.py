"""Is a cell proven done? Gathers the evidence of its run; `core.completion` judges it.

Read again at any time: what a run left may be gone, cut or replaced since. Nothing here changes or removes anything.
What lies outside of the run directory may be on a mount that hangs, so that is looked at in a disposable child.
"""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from typing import TYPE_CHECKING

from ...core.completion import Artifact, Evidence, Proof, Seen, Standing
from ...core.completion import judge as judge_evidence
from ...host import files
from ...host.clock import parse_utc
from ...host.offload import Offload, OffloadFailed
from ...model import wire
from ...model.finding import Level
from ...model.queue import CellState
from ...model.run import Outcome
from ...model.units import format_bytes
from ..postflight import MOST_ENTRIES, is_fresh
from ..retrying import may_be_followed, rehash_job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...model.queue import Cell
    from ..observe import RunView

LOOK_WITHIN_S = 15.0
MOST_WORDS = 5
NEEDED = frozenset({wire.RUN, wire.STATE, wire.EXIT})
"""Records without which nothing is proven; what else cannot be read (a torn heartbeat of the job's) says nothing."""
CHANGED_BY_S = 0.002
"""The exit record keeps modification times to the millisecond."""


def judge(cell: Cell, run_dir: str, expected_sha: str = "") -> tuple[CellState, str]:
    """DONE or FAILED, and why, for a cell whose run is over; `expected_sha` is its configuration (else the cell's own).

    Does not raise. FAILED begins with ``unverified:`` where the job may be done and that could not be proven.
    """
    proof = prove(cell, run_dir, expected_sha=expected_sha)
    if proof.done:
        return CellState.DONE, proof.why
    where = f" ({proof.path})" if proof.path else ""
    word = "" if proof.standing is Standing.FAILED else f"{proof.standing.value}: "
    return CellState.FAILED, f"{word}{proof.why}{where}"


def prove(cell: Cell, run_dir: str, *, expected_sha: str = "", deep: bool = False) -> Proof:
    """Where a cell stands by what is on disk now; `deep` reads the results whole. Does not raise."""
    return judge_evidence(gather(cell, run_dir, expected_sha=expected_sha or cell.sha256, deep=deep))


def gather(cell: Cell, run_dir: str, *, expected_sha: str, deep: bool = False) -> Evidence:
    """The evidence of one cell's run as it is now."""
    from ..observe import observe
    from .requeue import list_begun

    if not os.path.isdir(run_dir):
        return Evidence(exists=False)
    numbers = list_begun(run_dir)
    view = observe(run_dir, attempt=numbers[-1] if numbers else None)
    problems = [item for item in view.unreadable if os.path.basename(item.path) in NEEDED]
    if problems:
        return Evidence(problem="; ".join(f"{item.path}: {item.reason}" for item in problems))
    if not view.over:
        return Evidence(ending=view.note)
    try:
        return _gather_ended(cell, view, expected_sha, deep=deep)
    except (OSError, ValueError, OffloadFailed) as error:
        return Evidence(problem=f"{run_dir} cannot be judged: {error}")


def _gather_ended(cell: Cell, view: RunView, expected_sha: str, *, deep: bool) -> Evidence:
    outcome = next((item for item in Outcome if item.value == view.exit.get("outcome")), None)
    if outcome is None:
        return Evidence(problem=f"{view.attempt_dir}/{wire.EXIT} names no outcome")
    failed, unknown = _read_findings(view)
    succeeded = outcome is Outcome.SUCCEEDED
    return Evidence(
        mistaken=_find_mistake(cell, view, expected_sha),
        outcome=outcome,
        ending=str(view.exit.get("ending") or view.exit.get("evidence") or ""),
        failure=str(view.exit.get("failure_class") or ""),
        failed=failed if succeeded else (),
        unknown=unknown if succeeded else (),
        artifacts=_look_at_results(view, deep=deep) if succeeded else (),
        following=not succeeded and may_be_followed(view),
    )


def _find_mistake(cell: Cell, view: RunView, expected_sha: str) -> str:
    """How this run is not the cell's; empty when it is."""
    record, name = view.record, f"{view.run_dir}/{wire.RUN}"
    if record.get("run_id") != view.run_id:
        return f"{name} is of run {record.get('run_id')}"
    if cell.run_id is not None and cell.run_id != view.run_id:
        return f"the cell's run is {cell.run_id}, this is {view.run_id}"
    ref = record.get("cell")
    if isinstance(ref, dict) and ref.get("key") != cell.key:
        return f"{name} is of the cell {ref.get('group')}/{ref.get('name')}"
    told = record.get("job_sha256")
    if not isinstance(told, str) or rehash_job(record) != told:
        return f"{name} does not have the job whose hash was recorded with it"
    if expected_sha and told != expected_sha:
        return f"its configuration is {told[:12]}, the cell's is {expected_sha[:12]}"
    return ""


def _read_findings(view: RunView) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The checks after the end that failed, and those that could not be done, in words."""
    path = f"{view.attempt_dir}/{wire.POSTFLIGHT}"
    try:
        found = wire.parse_object(files.read_bytes(path), path).get("findings", [])
    except (OSError, wire.WireError) as error:
        return (), (f"the checks after the end cannot be read: {error}",)
    items = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []

    def words(level: Level) -> tuple[str, ...]:
        bad = [item for item in items if item.get("level") == level.value]
        return tuple(f"{item.get('subject')}: {item.get('evidence')}" for item in bad[:MOST_WORDS])

    return words(Level.FAIL), words(Level.UNKNOWN)


def _look_at_results(view: RunView, *, deep: bool) -> tuple[Artifact, ...]:
    job = view.record.get("job")
    told = job.get("artifacts") if isinstance(job, dict) else None
    declared = [item for item in told if isinstance(item, str)] if isinstance(told, list) else []
    if not declared:
        return ()
    started = view.exit.get("started_at")
    started_s = parse_utc(started) if isinstance(started, str) else 0.0

    def look() -> list[Artifact]:
        return [found for item in declared for found in _look_at(view, item, started_s, deep=deep)]

    near = all(not os.path.isabs(item) and ".." not in item.split("/") for item in declared)
    if near and not deep:
        return tuple(look())
    limit_s = LOOK_WITHIN_S if not deep else 40 * LOOK_WITHIN_S
    try:
        return tuple(wire.decode(Artifact, item) for item in Offload(lambda: wire.encode(look())).wait(limit_s))
    except OffloadFailed as error:
        return tuple(Artifact(item, item, Seen.UNREADABLE, f"could not be looked at: {error}") for item in declared)


def _look_at(view: RunView, declared: str, started_s: float, *, deep: bool) -> Iterator[Artifact]:
    pattern = os.path.join(view.run_dir, declared)
    paths = [pattern]
    if not os.path.lexists(pattern) and any(letter in declared for letter in "*?["):
        paths = sorted(glob.glob(pattern))[:MOST_ENTRIES]
    if not paths:
        yield Artifact(declared, pattern, Seen.MISSING, "is not there")
    recorded = _recorded(view)
    for path in paths:
        yield _look_at_one(declared, path, started_s, recorded.get(os.path.relpath(path, view.run_dir)), deep=deep)


def _recorded(view: RunView) -> dict[str, tuple[int, float]]:
    """Size and modification time at the end, by path inside the run directory."""
    found = {}
    told = view.exit.get("artifacts")
    for item in told if isinstance(told, list) else ():
        if isinstance(item, dict) and isinstance(item.get("bytes"), int) and isinstance(item.get("modified"), float):
            found[f"{wire.ARTIFACTS}/{item.get('name')}"] = (item["bytes"], item["modified"])
    return found


def _look_at_one(
    declared: str, path: str, started_s: float, recorded: tuple[int, float] | None, *, deep: bool
) -> Artifact:
    try:
        facts = os.stat(path)
        if stat.S_ISDIR(facts.st_mode):
            filled = _has_content(path)
            return Artifact(declared, path, Seen.WHOLE if filled else Seen.EMPTY, "" if filled else "has no content")
        seen, words = _judge_file(facts, started_s, recorded)
        if seen is Seen.WHOLE and deep:
            damage = _find_damage(path)
            seen, words = (Seen.WHOLE, words) if damage is None else (Seen.DAMAGED, damage)
        sha256 = _hash(path) if deep and seen is Seen.WHOLE else ""
    except FileNotFoundError:
        return Artifact(declared, path, Seen.MISSING, "is not there")
    except OSError as error:
        return Artifact(declared, path, Seen.UNREADABLE, f"cannot be read: {error.strerror}")
    return Artifact(declared, path, seen, words, facts.st_dev, facts.st_ino, facts.st_size, sha256)


def _judge_file(facts: os.stat_result, started_s: float, recorded: tuple[int, float] | None) -> tuple[Seen, str]:
    if not stat.S_ISREG(facts.st_mode):
        return Seen.DAMAGED, "is neither a file nor a directory"
    if facts.st_size == 0:
        return Seen.EMPTY, "is empty"
    if recorded is not None and recorded[0] != facts.st_size:
        return Seen.CHANGED, f"had {format_bytes(recorded[0])} at the end, has {format_bytes(facts.st_size)} now"
    if recorded is not None and abs(recorded[1] - facts.st_mtime) > CHANGED_BY_S:
        return Seen.CHANGED, "was written after the end"
    if not is_fresh(facts, started_s):
        return Seen.OLD, "is older than the start of the job: it is not this attempt's result"
    return Seen.WHOLE, format_bytes(facts.st_size)


def _find_damage(path: str) -> str | None:
    from ...host.readable import find_damage

    return find_damage(path)


def _hash(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _has_content(path: str) -> bool:
    """Whether a directory holds a file with content, among the first of its entries."""
    left = MOST_ENTRIES
    for directory, _, names in os.walk(path):
        for name in names[:left]:
            try:
                if os.stat(f"{directory}/{name}").st_size:
                    return True
            except OSError:
                continue
        left -= len(names)
        if left <= 0:
            return False
    return False
