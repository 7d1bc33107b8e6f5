"""What the copy of a run's results makes of how the run is seen: how far it is, and an end that it has made good.

Of a run that failed by its copy alone ``exit.json`` goes on saying so. Once somebody has copied its results
(``results.json`` says that they are proven there), every reader takes it for succeeded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.model import wire
from holdfast.model.record import replace
from holdfast.model.run import CopyState, Finalizing, Outcome
from holdfast.model.units import format_bytes, format_count
from holdfast.model.verdict import FailureClass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.run import Ended, State

Facts = dict[str, Any]
MADE_GOOD = "made_good"
"""In an exit record as readers have it, not on disk: the run counts as done by a copy that was made after its end."""


def may_have_copy(job: Mapping[str, object], exit_record: Mapping[str, object]) -> bool:
    """Whether there may be a record of a copy: most runs have none, and are not asked for it."""
    told = job.get("results")
    declared = isinstance(told, dict) and told.get("to") is not None
    return declared or exit_record.get("failure_class") == FailureClass.SYNC_FAILED.value


def is_copy_wanted(exit_record: Mapping[str, object], results: Mapping[str, object]) -> bool:
    """Whether a run failed by its copy alone, and nobody has made that good: its training is not to be repeated."""
    failed = exit_record.get("failure_class") == FailureClass.SYNC_FAILED.value
    return failed and results.get("state") in (CopyState.FAILED.value, CopyState.COPYING.value)


def make_good(end: Ended, exit_record: Facts, results: Facts) -> tuple[Ended, Facts] | None:
    """The end and the exit record of a run whose results were copied after it had failed by that; None of any other."""
    failed = exit_record.get("failure_class") == FailureClass.SYNC_FAILED.value
    if not failed or results.get("state") != CopyState.COPIED.value:
        return None
    words = f"{results.get('training')}; its results were copied later, at {results.get('at')}, to {results.get('to')}"
    told = {"outcome": Outcome.SUCCEEDED.value, "exit_code": 0, "evidence": words, "ending": words}
    changed = replace(end, outcome=Outcome.SUCCEEDED, exit_code=0, evidence=words)
    return changed, {**exit_record, **told, "failure_class": None, MADE_GOOD: True}


def describe_copy(state: State, results: Facts) -> str:
    """How far the copy of its results is, while that is what a run is at; else empty."""
    if not isinstance(state, Finalizing) or state.copying is None:
        return ""
    done, total, done_bytes, size = (
        wire.as_whole(results.get(name)) or 0 for name in ("files_done", "files_total", "bytes_done", "bytes_total")
    )
    files = f"{done} of {format_count(total, 'file')}"
    far = f"{files}, {format_bytes(done_bytes)} of {format_bytes(size)}" if total else "begun"
    return f"the training succeeded; its results are copied to {results.get('to') or 'where they last'}: {far}"
