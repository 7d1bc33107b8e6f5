"""Giving up a place: what is only there, what a person approved, and whether it is gone (docs/teardown.md)."""

from __future__ import annotations

from .record import field, record

APPROVALS = "approvals.jsonl"
"""Below the desk's ``places/PLACE``: an `Approval` a line."""
GONE = "gone.json"
"""Beside it: the last `GoneCheck`."""
NO_RECORD = "run.json cannot be read"
"""`Remains.problem`, where nothing is known of the run but its files."""


@record
class Remains:
    """What the directory of one ended run holds, as the box has just seen it.

    `offline` are directories of a tracker that were not sent to it, absolute. `tree`, `commit` and `dirty` are of the
    code (None or empty: not recorded), `pushed` a branch of a remote that has the commit, as the repository there says
    (empty: none does); `diff` says that the difference from the commit is kept in the run's directory, `copies` how
    many of its script and configuration files are. `results` is the directory to which results are to be copied after
    a success (empty: none), `results_state` how far that is (as of `CopyState`; empty: there is no record of it), with
    what went wrong. `problem` says why not all could be looked at.
    """

    run_dir: str
    offline: tuple[str, ...] = ()
    tree: str = ""
    commit: str | None = None
    dirty: bool | None = None
    pushed: str = ""
    diff: bool = False
    copies: int = 0
    results: str = ""
    results_state: str = ""
    results_problem: str = ""
    problem: str = ""


@record
class Approval:
    """One act that a person approved, once: the plan by its hash, the place with its host, the provider's verb.

    `left` are runs that were left behind, each with the reason; `verified` facts of the profile that the person has
    verified again; `receipts` the roster of each run that is home. `stops_meter` is as in `EndVerb`.
    """

    plan: str
    place: str
    host: str
    verb: str
    at: str
    by: str
    stops_meter: bool | None = None
    irreversible: bool = True
    left: dict[str, str] = field(default_factory=dict)
    verified: tuple[str, ...] = ()
    receipts: dict[str, str] = field(default_factory=dict)


@record
class GoneCheck:
    """What the place's status endpoint said `at` (ISO UTC) of the machine after `verb`.

    `state` is ``gone``, ``stopped``, ``there`` or ``unknown``; `seen` what it answered, in words; `host` which machine
    the place was then (empty: not recorded).
    """

    at: str
    verb: str
    state: str
    seen: str
    host: str = ""
