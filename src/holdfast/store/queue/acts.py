"""Acts of the journal, made from what was handed in or ordered, and applied to the database.

Applying is a function of the act and of the database as the acts before it have left it. What an order means is worked
out once, when it is given (`orders`), and stored with it, so a replay needs nothing that may have changed since.
A job's row keeps in `from_attempt` how many attempts its run had had at the last such change: what the run directory
tells about attempts up to that one is older than the order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.core.digest import sha256_hex
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.queue import DEFAULT_GROUP, WAITING_STATES, JobState, OrderVerb, QueueAct, Submission
from holdfast.model.record import fields

from .admission import SubmissionPlan, count_cards, describe_needs
from .journal import SCHEMA, JournalAct
from .rows import clean_text
from .schema import read_number, write_meta

if TYPE_CHECKING:
    import sqlite3

    from .orders import OrderEffects

_ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_WAITING = tuple(sorted(state.value for state in WAITING_STATES))
_RELEASED = "CASE WHEN open_needs > 0 THEN 'blocked' ELSE 'queued' END"
_INSERT = (
    "INSERT INTO jobs (id, seq, group_id, name, state, priority, place, cards, not_before, open_needs, expected_s,"
    " params, change, after, sha256, submitted_at) VALUES (?, ?, ?, ?, 'queued', ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?)"
)
_COUNT_NEEDS = (
    "UPDATE jobs SET open_needs = (SELECT count(*) FROM needs n JOIN jobs c ON c.id = n.need"
    " WHERE n.job = jobs.id AND c.state <> 'done') WHERE id = ?"
)
_REMOVE = (
    "DELETE FROM needs WHERE job = ?",
    "DELETE FROM needs WHERE need = ?",
    "DELETE FROM jobs WHERE id = ?",
)
REMEMBER_SETTINGS = ("paused", "draining", "cpu_slots")


# --- making ---------------------------------------------------------------------------------------------------------


def build_submission(
    submission: Submission, plan: SubmissionPlan, *, queue_id: str, seq: int, now: float, first_id: int
) -> JournalAct:
    """The act of a submission: its new jobs, with ids for what they need."""
    ids = {position: first_id + offset for offset, position in enumerate(plan.new)}
    jobs = []
    for position in plan.new:
        job = submission.jobs[position]
        line: dict[str, Any] = {"name": job.name}
        if job.needs:
            line["after"] = job.needs
            line["needs"] = [need if need >= 0 else ids[-1 - need] for need in plan.needs.get(position, [])]
        for name in ("change", "params", "priority", "not_before", "expected_s", "sha256"):
            if value := getattr(job, name):
                line[name] = value
        if position in plan.replaced:
            # With who needs it: of the replaced one nothing may be left when this is applied again.
            line["replaces"], line["needed_by"] = plan.replaced[position], plan.heirs[position]
        jobs.append(line)
    plain = {item.name: getattr(submission, item.name) for item in fields(submission) if item.name != "jobs"}
    head = {
        "schema": SCHEMA,
        "act": "submission",
        "queue": queue_id,
        "seq": seq,
        "time": now,
        "first_id": first_id,
        "next_id": first_id + len(jobs),
        "submission": wire.encode(plain),
    }
    return JournalAct(seq, head, jobs)


def build_order(
    order: QueueAct, effects: OrderEffects, *, queue_id: str, seq: int, now: float, next_id: int
) -> JournalAct:
    """The act of an order."""
    head = {
        "schema": SCHEMA,
        "act": "order",
        "queue": queue_id,
        "seq": seq,
        "time": now,
        "next_id": next_id,
        "order": wire.encode(order),
        "effects": wire.encode(effects),
    }
    return JournalAct(seq, head)


# --- applying -------------------------------------------------------------------------------------------------------


def apply_act(db: sqlite3.Connection, act: JournalAct) -> None:
    """Apply one act, inside a transaction, and note that.

    Raises:
        StorageError: it is an act that this holdfast does not know.
    """
    head = act.head
    try:
        if head["act"] == "submission":
            _apply_submission(db, act)
        elif head["act"] == "order":
            _apply_order(db, OrderVerb(head["order"]["verb"]), head["order"], head["effects"])
        else:
            raise ValueError(f"unknown act {head['act']!r}")
        next_id = max(int(head["next_id"]), read_number(db, "next_id"))
    except (KeyError, ValueError, TypeError) as error:
        raise StorageError(
            f"act {act.seq} of the queue's journal cannot be applied: {error}",
            hint="Was it written by a newer holdfast? Use that one, or restore the file.",
        ) from error
    write_meta(db, applied=act.seq, next_id=next_id, queue_id=head["queue"])


def _apply_submission(db: sqlite3.Connection, act: JournalAct) -> None:
    head, submission = act.head, act.head["submission"]
    now = head["time"]
    group_id = _upsert_group(db, submission, now)
    base = _ENCODE(submission["base"])
    db.execute(
        "INSERT INTO submissions (seq, base_hash, claims, runs_root, head) VALUES (?, ?, ?, ?, ?)",
        (
            *(act.seq, sha256_hex(base.encode()), submission["claims"]),
            *(submission["runs_root"], _ENCODE(submission)),
        ),
    )
    first = head["first_id"]
    replaced = [(job["replaces"],) for job in act.jobs if "replaces" in job]
    for statement in _REMOVE if replaced else ():
        db.executemany(statement, replaced)
    db.executemany(_INSERT, list(_rows(act, group_id, first, submission["base"])))
    pairs = [(first + i, need) for i, job in enumerate(act.jobs) for need in job.get("needs", ())]
    if pairs:
        _apply_needs(db, pairs)
    heirs = [(heir, first + i) for i, job in enumerate(act.jobs) for heir in job.get("needed_by", ())]
    if heirs:
        _hand_on_needs(db, heirs)


def _hand_on_needs(db: sqlite3.Connection, pairs: Sequence[tuple[int, int]]) -> None:
    """Jobs that needed a replaced one need the new one: pairs of both."""
    db.executemany(
        "INSERT OR IGNORE INTO needs (job, need) SELECT id, ? FROM jobs WHERE id = ?", [p[::-1] for p in pairs]
    )
    for job in sorted({job for job, _ in pairs}):
        needs = [row[0] for row in db.execute("SELECT need FROM needs WHERE job = ? ORDER BY need", (job,))]
        db.execute(_COUNT_NEEDS, (job,))
        db.execute(
            f"UPDATE jobs SET state = {_RELEASED}, note = ? WHERE id = ? AND state IN ('queued', 'blocked')",  # noqa: S608 - ours
            (describe_needs(db, needs), job),
        )


def _rows(act: JournalAct, group_id: int, first: int, base: dict[str, Any]) -> Iterable[tuple[object, ...]]:
    now = act.head["time"]
    for job_id, job in enumerate(act.jobs, first):
        change, params = job.get("change"), job.get("params")
        yield (
            *(job_id, act.seq, group_id, job["name"], job.get("priority", 0), float(job_id)),
            *(count_cards(base, change or {}), job.get("not_before"), job.get("expected_s")),
            *(_ENCODE(params) if params else "", _ENCODE(change) if change else ""),
            *(" ".join(job.get("after", ())), job.get("sha256", ""), now),
        )


def _upsert_group(db: sqlite3.Connection, submission: dict[str, Any], now: float) -> int:
    name = submission["group"]
    db.execute(
        "INSERT INTO groups (name, kind, max_parallel, paused, held, hold_after, source, made_at)"
        " VALUES (?, ?, ?, 0, '', ?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
        " max_parallel = coalesce(excluded.max_parallel, max_parallel), source = coalesce(excluded.source, source),"
        " hold_after = CASE WHEN excluded.hold_after > 0 THEN excluded.hold_after ELSE hold_after END",
        (
            *(name, submission["kind"], submission["max_parallel"], submission["hold_after"]),
            *(None if submission["source"] is None else clean_text(submission["source"]), now),
        ),
    )
    if submission.get("paused"):
        db.execute("UPDATE groups SET paused = 1 WHERE name = ?", (name,))
    return int(db.execute("SELECT id FROM groups WHERE name = ?", (name,)).fetchone()[0])


def _apply_needs(db: sqlite3.Connection, pairs: list[tuple[int, int]]) -> None:
    # A need that is not there any more was cleared, and only what is proven done is, while somebody needs it.
    db.executemany("INSERT OR IGNORE INTO needs (job, need) SELECT ?, id FROM jobs WHERE id = ?", pairs)
    jobs = sorted({job for job, _ in pairs})
    db.executemany(_COUNT_NEEDS, [(job,) for job in jobs])
    db.executemany(f"UPDATE jobs SET state = {_RELEASED} WHERE id = ?", [(job,) for job in jobs])  # noqa: S608 - ours
    by_job: dict[int, list[int]] = {}
    for job, need in pairs:
        by_job.setdefault(job, []).append(need)
    words: dict[tuple[int, ...], str] = {}
    for job, needs in by_job.items():
        key = tuple(needs)
        if key not in words:
            words[key] = describe_needs(db, needs)
        if words[key]:
            db.execute("UPDATE jobs SET note = ? WHERE id = ?", (words[key], job))


def _apply_order(db: sqlite3.Connection, verb: OrderVerb, order: dict[str, Any], effects: dict[str, Any]) -> None:
    changed: list[list[Any]] = effects["jobs"]
    if verb is OrderVerb.CANCEL:
        marks = ", ".join("?" * len(_WAITING))
        note = clean_text(f"cancelled by {order['by']}")
        values = [(note, seen, job, *_WAITING) for job, seen in changed]
        db.executemany(
            f"UPDATE jobs SET state = 'cancelled', note = ?, from_attempt = ?"  # noqa: S608 - ours
            f" WHERE id = ? AND state IN ({marks}, 'elsewhere')",
            values,
        )
    elif verb in (OrderVerb.RETRY, OrderVerb.RESUME):
        _release(db, verb, changed, accepts=bool(order["values"].get("accept_changes")))
    elif verb in (OrderVerb.PAUSE, OrderVerb.DRAIN):
        # What a person holds by name goes on by name alone.
        why = order["values"].get("reason")
        note = clean_text(f"held by {order['by']}" + (f": {why}" if why else ""))
        db.executemany(
            "UPDATE jobs SET state = 'held', guarded = 1, note = ?, from_attempt = ?"
            " WHERE id = ? AND state IN ('queued', 'blocked')",
            [(note, seen, job) for job, seen in changed],
        )
    elif verb is OrderVerb.CLEAR:
        _clear(db, [job for job, _ in changed])
    for job, facts in effects["edits"]:
        names = [name for name in ("priority", "place", "not_before") if name in facts]
        columns = ", ".join(f"{name} = ?" for name in names)
        db.execute(f"UPDATE jobs SET {columns} WHERE id = ?", (*(facts[name] for name in names), job))  # noqa: S608 - ours
    for name in ("paused", "held", "max_parallel", "hold_after"):
        if name in effects["group"]:
            db.execute(f"UPDATE groups SET {name} = ? WHERE name = ?", (effects["group"][name], order["group"]))  # noqa: S608 - ours
    settings = {name: effects["settings"][name] for name in REMEMBER_SETTINGS if name in effects["settings"]}
    write_meta(db, **settings)


def _release(db: sqlite3.Connection, verb: OrderVerb, changed: Sequence[Sequence[Any]], *, accepts: bool) -> None:
    """Let held jobs go on; with RETRY also closed ones."""
    fits = {"held", "failed", "cancelled", "done"} if verb is OrderVerb.RETRY else {"held"}
    for job, seen in changed:
        row = db.execute("SELECT state FROM jobs WHERE id = ?", (job,)).fetchone()
        if row is None:
            continue
        if row[0] == JobState.DONE.value and row[0] in fits:
            withdraw_done(db, job)
        if row[0] in fits or row[0] in _WAITING:
            # What came after a failure was the pause before the next try; a person's word ends it.
            db.execute(
                f"UPDATE jobs SET state = {_RELEASED}, note = '', from_attempt = ?, guarded = 0, requeued = 0,"  # noqa: S608 - ours
                " not_before = CASE WHEN ? > 0 THEN NULL ELSE not_before END,"
                " accepts_changes = max(accepts_changes, ?) WHERE id = ?",
                (seen, seen, int(accepts), job),
            )


def withdraw_done(db: sqlite3.Connection, job: int) -> None:
    """A job is not proven done any more: what needs it waits for it again."""
    db.execute(
        "UPDATE jobs SET open_needs = open_needs + 1, state = CASE state WHEN 'queued' THEN 'blocked' ELSE state END"
        " WHERE id IN (SELECT job FROM needs WHERE need = ?)",
        (job,),
    )


def note_done(db: sqlite3.Connection, job: int) -> None:
    """A job is proven done: what needs it needs one less, and may start at none."""
    db.execute(
        "UPDATE jobs SET open_needs = open_needs - 1,"
        " state = CASE WHEN state = 'blocked' AND open_needs <= 1 THEN 'queued' ELSE state END,"
        " note = CASE WHEN state = 'blocked' AND open_needs <= 1 THEN '' ELSE note END"
        " WHERE id IN (SELECT job FROM needs WHERE need = ?)",
        (job,),
    )


def _clear(db: sqlite3.Connection, jobs: Sequence[int]) -> None:
    ids = [(job,) for job in jobs]
    for statement in _REMOVE:
        db.executemany(statement, ids)
    db.execute("DELETE FROM groups WHERE name <> ? AND id NOT IN (SELECT group_id FROM jobs)", (DEFAULT_GROUP,))
    # Of a group that stays a submission may have said the limits, also when all its jobs were replaced.
    stay = {name for (name,) in db.execute("SELECT name FROM groups")} - {DEFAULT_GROUP}
    empty = db.execute("SELECT seq, head FROM submissions WHERE seq NOT IN (SELECT seq FROM jobs)").fetchall()
    gone = [(seq,) for seq, head in empty if json.loads(head)["group"] not in stay]
    db.executemany("DELETE FROM submissions WHERE seq = ?", gone)
