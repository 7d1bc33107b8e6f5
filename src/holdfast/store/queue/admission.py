"""Looking through a submission before it is taken: names, known jobs, dependencies, cycles.

All mistakes are found at once, because who hands in a thousand jobs wants to hear of the third one too.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.model.errors import UsageError
from holdfast.model.pattern import compile_later
from holdfast.model.queue import DEFAULT_GROUP, WAITING_STATES, GroupKind, IfChanged, JobState, NewJob, Submission
from holdfast.model.record import field, record

from .rows import clean_text, read_state
from .schema import read_number

if TYPE_CHECKING:
    import sqlite3

    ReadLines = Callable[[int], Mapping[str, Mapping[str, Any]]]

MOST_MISTAKES = 10
MOST_NEEDS = 2_000_000
"""Pairs of jobs, of which one needs the other, in one submission: each is a row."""
_KNOWN = (
    "SELECT c.name, c.id, c.sha256, c.seq, c.state, c.run_id IS NOT NULL, c.attempts, c.priority, c.not_before, c.after"
    " FROM jobs c JOIN groups g ON g.id = c.group_id WHERE g.name = ?"
)
_HEIRS = "SELECT job FROM needs WHERE need = ? ORDER BY job"
_OPEN_NEEDS = "SELECT c.id, c.name, n.need FROM needs n JOIN jobs c ON c.id = n.job WHERE c.state <> 'done'"
_CONFIGURATION = "configuration"
_IN_PLACE = frozenset({"--priority", "--not-before"})
"""What `queue edit` changes."""
_NAME = compile_later(r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,199}", re.ASCII)


@record(frozen=False)
class SubmissionPlan:
    """What a submission comes to.

    `new` are positions of the jobs that are not known yet, `ids` the ids of all by position (0: new), `needs` by
    position: ids of known jobs, and positions of new ones as negative numbers less one. `replaced` by position: the
    cancelled job whose name and place in the needs of others a new one takes, and `heirs` those others.
    """

    new: list[int]
    ids: list[int]
    needs: dict[int, list[int]] = field(default_factory=dict)
    replaced: dict[int, int] = field(default_factory=dict)
    heirs: dict[int, list[int]] = field(default_factory=dict)


@record
class _KnownJob:
    """A job that is there, in what another one of its name is held against. `after` is as it was written."""

    id: int
    sha256: str
    seq: int
    state: JobState
    has_run: bool
    attempts: int
    priority: int
    not_before: float | None
    after: tuple[str, ...]


def plan_submission(db: sqlite3.Connection, submission: Submission, read_lines: ReadLines) -> SubmissionPlan:
    """What of it is new and what that needs. `read_lines` is `QueueEngine.read_lines`.

    Raises:
        UsageError: up to ten mistakes, each with what to do.
    """
    mistakes = [*_check_names(submission)]
    known = _read_known(db, submission.group)
    comparison = _Comparison(db, submission, read_lines)
    plan = SubmissionPlan([], [])
    refused = []
    for position, job in enumerate(submission.jobs):
        there = known.get(job.name)
        if there is not None and (differences := comparison.compare(there, job)):
            way = comparison.find_way(there, job, differences)
            if not way:
                plan.replaced[position] = there.id
                plan.heirs[position] = [row[0] for row in db.execute(_HEIRS, (there.id,))]
                there = None
            else:
                if "--after" in differences:
                    refused.append(job)
                words = " and ".join(differences.values())
                mistakes.append(f"{submission.group}/{job.name} is in the queue with {words}: {way}")
        if there is None:
            plan.new.append(position)
        plan.ids.append(0 if there is None else there.id)
    if not mistakes or refused:
        # First, so that nobody takes a job out for another one that cannot be taken.
        missing: list[str] = []
        needs = _Needs(db, submission, known, plan, missing)
        needs.resolve()
        for job in refused:
            needs.look_up(job)
        mistakes = [*missing, *mistakes]
    if not mistakes:
        mistakes += _find_cycle(db, submission.jobs, plan)
    if mistakes:
        shown = mistakes[:MOST_MISTAKES]
        more = f"\n... and {len(mistakes) - len(shown)} more" if len(mistakes) > len(shown) else ""
        raise UsageError("\n".join(shown) + more, hint="Nothing was taken: mend it and hand it in again.")
    return plan


class _Comparison:
    """Holds jobs against those of their names that are there, in all that is said of a job when it is handed in."""

    def __init__(self, db: sqlite3.Connection, submission: Submission, read_lines: ReadLines) -> None:
        self._db, self._submission, self._read_lines = db, submission, read_lines
        # While the runs are not read it is not known what has started.
        self._unread = bool(read_number(db, "runs_unread"))
        self._lines: dict[int, Mapping[str, Mapping[str, Any]]] = {}
        self._heads: dict[int, tuple[str | None, str]] = {}
        self._meant: dict[frozenset[str], frozenset[int] | None] = {}

    def compare(self, there: _KnownJob, job: NewJob) -> dict[str, str]:
        """How the one that is there was handed in otherwise, in words by the option: what still has a meaning for it.

        Orders since then count for nothing here: who hands in the same again after a `queue edit` has the same.
        """
        found = {}
        if there.sha256 != job.sha256:
            hashes = f"{_short(there.sha256)}, this one is {_short(job.sha256)}"
            found[_CONFIGURATION] = f"another configuration ({hashes})"
        if there.state is JobState.DONE:
            return found
        if not self._has_same_needs(there, job):
            found["--after"] = _say_other("--after", ", ".join(there.after), ", ".join(job.needs))
        if there.priority != job.priority and self._line(there, job).get("priority", 0) != job.priority:
            found["--priority"] = _say_other("--priority", there.priority, job.priority)
        if self._never_ran(there):
            found |= self._compare_start(there, job)
        return found

    def _compare_start(self, there: _KnownJob, job: NewJob) -> dict[str, str]:
        """As `compare`, of what has a meaning until the first start. Of a time whether there is one: ``+2h`` moves on.

        `sweep add` says none of it again.
        """
        if self._submission.kind is GroupKind.SWEEP:
            return {}
        found = {}
        if there.seq not in self._heads:
            row = self._db.execute("SELECT claims, head FROM submissions WHERE seq = ?", (there.seq,)).fetchone()
            self._heads[there.seq] = (row[0], json.loads(row[1]).get("if_changed", IfChanged.RUN.value))
        claims, if_changed = self._heads[there.seq]
        if claims != self._submission.claims:
            found["--claims"] = _say_other("--claims", claims, self._submission.claims)
        if if_changed != self._submission.if_changed.value:
            found["--if-changed"] = _say_other("--if-changed", if_changed, self._submission.if_changed.value)
        is_timed = job.not_before is not None
        if is_timed != (there.not_before is not None) and is_timed != (
            self._line(there, job).get("not_before") is not None
        ):
            found["--not-before"] = _say_other("--not-before", there.not_before and "TIME", job.not_before and "TIME")
        return found

    def _has_same_needs(self, there: _KnownJob, job: NewJob) -> bool:
        """Whether both were said to need the same, or this one needs what that one needs now."""
        own = f"{self._submission.group}/"
        words = [{word if "/" in word else own + word for word in each} for each in (there.after, job.needs)]
        if words[0] == words[1]:
            return True
        key = frozenset(words[1])
        if key not in self._meant:
            # Many jobs of one submission need the same: ten thousand that need a group would each read all of it.
            self._meant[key] = self._find_meant(key)
        ids = self._meant[key]
        return ids is not None and ids == {
            row[0] for row in self._db.execute("SELECT need FROM needs WHERE job = ?", (there.id,))
        }

    def _find_meant(self, words: frozenset[str]) -> frozenset[int] | None:
        """The ids of what is needed; None where a word names nothing that is there."""
        ids: set[int] = set()
        for word in words:
            group, _, name = word.partition("/")
            found = find_ids(self._db, group, name or None)
            if not found:
                return None
            ids.update(found)
        return frozenset(ids)

    def _line(self, there: _KnownJob, job: NewJob) -> Mapping[str, Any]:
        """The known job as it was handed in; as it is now where its file of the journal cannot be read."""
        if there.seq not in self._lines:
            self._lines[there.seq] = self._read_lines(there.seq)
        now = {"priority": there.priority, "not_before": there.not_before}
        return self._lines[there.seq].get(job.name, now)

    def _never_ran(self, there: _KnownJob) -> bool:
        return not (there.has_run or there.attempts or self._unread)

    def find_way(self, there: _KnownJob, job: NewJob, differences: Mapping[str, str]) -> str:
        """What to do about a known job; empty where the new one may take its place: cancelled, never started."""
        group, own = self._submission.group, "give this one a name of its own"
        label = job.name if group == DEFAULT_GROUP else f"{group}/{job.name}"
        if self._never_ran(there) and there.state is JobState.CANCELLED:
            return ""
        take_out = f"take that one out first (holdfast queue cancel {label})"
        waits = self._never_ran(there) and there.state in WAITING_STATES
        if _CONFIGURATION in differences:
            if waits:
                return f"{take_out}, or {own}"
            if there.has_run and there.state in (JobState.FAILED, JobState.CANCELLED):
                mend = f"holdfast restart {label} -- COMMAND (or --job FILE)"
                return f"mend that one by {mend}, and what waits for it goes on once it is done; or {own}"
            return own
        edited = there.state in WAITING_STATES or "--not-before" not in differences
        if differences.keys() <= _IN_PLACE and edited:
            values = {"--priority": str(job.priority), "--not-before": "TIME" if job.not_before else "now"}
            options = "".join(f" {option} {values[option]}" for option in differences)
            return f"change that one (holdfast queue edit {label}{options})"
        if waits:
            return f"{take_out}, then hand this one in again"
        return f"it has begun and keeps that; hand it in as it was, or {own}"


def _say_other(option: str, there: object, this: object) -> str:
    """``--after a (this one: none)``, ``no --after (this one: b)``."""
    has = there is not None and there != ""
    return f"{f'{option} {there}' if has else f'no {option}'} (this one: {'none' if this in (None, '') else this})"


def _short(sha256: str) -> str:
    return sha256[:10] or "no hash"


def check_name(name: str, what: str) -> str:
    """Why `name` cannot be one; empty when it can."""
    if _NAME.fullmatch(name):
        return ""
    return f"{what} {name[:80]!r}: a name is 1 to 200 letters, digits, - _ . = and begins with a letter or digit"


def _check_names(submission: Submission) -> Iterable[str]:
    if problem := check_name(submission.group, "group"):
        yield problem
    names = Counter(job.name for job in submission.jobs)
    for position, job in enumerate(submission.jobs, 1):
        if problem := check_name(job.name, f"job {position}"):
            yield problem
    for name in [name for name, number in names.items() if number > 1][:MOST_MISTAKES]:
        places = [str(position) for position, job in enumerate(submission.jobs, 1) if job.name == name]
        yield f"jobs {' and '.join(places[:5])} have one name: {name}; results of one would be taken for the other's"


def _read_known(db: sqlite3.Connection, group: str) -> dict[str, _KnownJob]:
    known = {}
    for name, job_id, sha256, seq, state, has_run, attempts, priority, not_before, after in db.execute(
        _KNOWN, (group,)
    ):
        has = (read_state(state), bool(has_run), attempts, priority, not_before, tuple(after.split()))
        known[name] = _KnownJob(job_id, sha256, seq, *has)
    return known


class _Needs:
    """Resolves the words of `NewJob.needs`; each word is looked up once."""

    def __init__(
        self,
        db: sqlite3.Connection,
        submission: Submission,
        known: dict[str, _KnownJob],
        plan: SubmissionPlan,
        mistakes: list[str],
    ) -> None:
        self._db, self._group, self._jobs = db, submission.group, submission.jobs
        self._known, self._plan, self._mistakes = known, plan, mistakes
        self._positions: dict[str, int] = {}
        self._found: dict[str, list[int]] = {}

    def resolve(self) -> None:
        self._positions = {self._jobs[position].name: position for position in self._plan.new}
        total = 0
        for position in self._plan.new:
            job = self._jobs[position]
            if not job.needs:
                continue
            found = [number for word in job.needs for number in self._look_up(word, job.name)]
            self._plan.needs[position] = list(dict.fromkeys(found))
            total += len(found)
            if total > MOST_NEEDS:
                self._mistakes.append(
                    f"the jobs need each other in more than {MOST_NEEDS} pairs: let one job need the group, and the "
                    "others that job"
                )
                return

    def look_up(self, job: NewJob) -> None:
        """Complain of what a job needs and is not there."""
        for word in job.needs:
            self._look_up(word, job.name)

    def _look_up(self, word: str, name: str) -> list[int]:
        if word not in self._found:
            self._found[word] = self._find(word, name)
        return self._found[word]

    def _find(self, word: str, name: str) -> list[int]:
        group, slash, job = word.partition("/")
        if not slash:
            group, job = self._group, word
        if slash and not job:
            replaced = set(self._plan.replaced.values())
            ids = [job_id for job_id in find_ids(self._db, group) if job_id not in replaced]
            if not ids:
                self._complain(word, name, "there is no such group, or it has no jobs yet")
            return ids
        if group == self._group and job in self._positions:
            return [-1 - self._positions[job]]
        ids = [self._known[job].id] if group == self._group and job in self._known else find_ids(self._db, group, job)
        if not ids:
            self._complain(word, name, "there is no such job")
        return ids

    def _complain(self, word: str, name: str, why: str) -> None:
        near = propose_names(self._db, word, [*self._positions, *self._known], group=self._group)
        self._mistakes.append(f"{name} needs {word}: {why}{near}")


def find_ids(db: sqlite3.Connection, group: str, name: str | None = None) -> list[int]:
    """The ids of a group's jobs, or of the one of that name."""
    query = "SELECT c.id FROM jobs c JOIN groups g ON g.id = c.group_id WHERE g.name = ?"
    values: tuple[str, ...] = (clean_text(group),)
    if name is not None:
        query, values = f"{query} AND c.name = ?", (*values, clean_text(name))
    return [row[0] for row in db.execute(f"{query} ORDER BY c.id", values)]


def propose_names(db: sqlite3.Connection, word: str, names: Iterable[str] = (), *, group: str = "default") -> str:
    """Names near to a word, for a message: `` (near: a, b)``; empty when nothing is near.

    `group` is the one in which the word was said: there a name alone is that of a job of this group.
    """
    import difflib

    rows = db.execute("SELECT g.name, c.name FROM jobs c JOIN groups g ON g.id = c.group_id LIMIT 20000")
    labels = {f"{its}/{name}" if its != "default" or group != "default" else name for its, name in rows}
    groups = {f"{name}/" for (name,) in db.execute("SELECT name FROM groups")}
    known = [*names, *sorted(groups), *sorted(labels)]
    # Jobs of commands have long names: who types the beginning of one, or leaves out its group, means that one.
    begun = [name for name in known if name.startswith(word) or name.partition("/")[2] == word]
    near = [*begun, *difflib.get_close_matches(word, known, n=3)][:3] if word else []
    return f" (near: {', '.join(dict.fromkeys(near))})" if near else ""


def _find_cycle(db: sqlite3.Connection, jobs: Sequence[NewJob], plan: SubmissionPlan) -> Iterable[str]:
    """A cycle, as a sentence. Only new jobs can form one: what is there needs no new one but those that replace one."""
    edges = {-1 - at: [n for n in needs if n < 0 or plan.replaced] for at, needs in plan.needs.items()}
    names = {-1 - position: job.name for position, job in enumerate(jobs)}
    if plan.replaced:
        new = {job_id: -1 - position for position, job_id in plan.replaced.items()}
        for job_id, name, need in db.execute(_OPEN_NEEDS):
            if job_id not in new:
                names[job_id] = name
                edges.setdefault(job_id, []).append(new.get(need, need))
    done: set[int] = set()
    for start in edges:
        path: list[int] = []
        on_path: set[int] = set()
        stack: list[tuple[int, bool]] = [(start, False)]
        while stack:
            node, leaving = stack.pop()
            if leaving:
                on_path.discard(path.pop())
                done.add(node)
                continue
            if node in on_path:
                around = [names[at] for at in [*path[path.index(node) :], node]]
                words = ", ".join(f"{a} needs {b}" for a, b in itertools.pairwise(around))
                yield f"nothing could ever start: {words}"
                return
            if node in done:
                continue
            path.append(node)
            on_path.add(node)
            stack.append((node, True))
            stack.extend((need, False) for need in edges.get(node, ()))


def describe_needs(db: sqlite3.Connection, ids: Iterable[int]) -> str:
    """Why jobs that are needed will not be done by themselves; empty when they may be."""
    closed = {JobState.FAILED.value, JobState.CANCELLED.value}
    for job_id in ids:
        row = db.execute(
            "SELECT g.name, c.name, c.state FROM jobs c JOIN groups g ON g.id = c.group_id WHERE c.id = ?", (job_id,)
        ).fetchone()
        if row is not None and row[2] in closed:
            return f"needs {row[0]}/{row[1]}, which is {row[2]}"
    return ""


def count_cards(base: dict[str, Any], change: dict[str, Any]) -> int:
    """How many cards a job asks for, of its encoded form."""
    wish = change.get("gpus", base.get("gpus"))
    if not isinstance(wish, dict):
        return 0
    devices, count = wish.get("devices"), wish.get("count")
    if isinstance(devices, (list, tuple)) and devices:
        return len(devices)
    return count if isinstance(count, int) else 0
