"""How an attempt ended, in short: for whoever followed it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.view.live.undelivered import await_told
from holdfast.agent.view.page.run_cards import name_cards
from holdfast.agent.view.retries import read_objection
from holdfast.diagnosis.ended.judgement import read_judgement
from holdfast.host.clock import parse_utc
from holdfast.model import wire
from holdfast.model.record import record

if TYPE_CHECKING:
    from holdfast.agent.view.run_view import RunView
    from holdfast.model.verdict import Verdict

ASKED = "asked for"
"""Why a priority was chosen that the job states (`agent.supervise.priority`)."""


@record
class Summary:
    """How an attempt ended: `why`, what it used and left, and what was judged of a failure.

    `hint` is a refusal's; `failure` is the path of the failure note, with `verdict`, and `not_again` says why no other
    attempt follows where one could have, or several were asked for. A `verdict` without a failure is what speaks
    against a success. `nice` says how the job was nice to others, and why.
    """

    run_id: str
    name: str
    run_dir: str
    attempt: int
    condition: str
    exit_code: int | None
    seconds: float | None
    why: str
    cards: str
    artifacts_dir: str
    artifacts: int
    warnings: tuple[str, ...]
    hint: str | None
    failure: str | None
    verdict: Verdict | None
    not_again: str | None
    nice: str = ""


def read_summary(view: RunView) -> Summary:
    """What there is to say of an attempt that is over."""
    end = view.end
    hint = (end.refusal.hint or None) if end is not None and end.refusal is not None else None
    failure = f"{view.attempt_dir}/{wire.FAILURE}"
    shown = hint is None and os.path.exists(failure)
    verdict, not_again = _read_verdict(view) if shown or view.doubt else (None, None)
    artifacts = f"{view.run_dir}/{wire.ARTIFACTS}"
    return Summary(
        run_id=view.run_id,
        name=view.name,
        run_dir=view.run_dir,
        attempt=view.attempt,
        condition=view.condition,
        exit_code=view.exit_code,
        seconds=_read_duration(view),
        why=end.evidence if end is not None else view.note,
        cards=name_cards(view),
        artifacts_dir=artifacts,
        artifacts=count_artifacts(view.run_dir),
        warnings=(*(end.warnings if end is not None else ()), *await_told(view)),
        hint=hint,
        failure=failure if shown else None,
        verdict=verdict,
        not_again=not_again,
        nice=_describe_nice(view),
    )


def count_artifacts(run_dir: str) -> int:
    """How many files are below the directory of a run's results; what cannot be read is not counted."""
    return sum(len(names) for _, _, names in os.walk(f"{run_dir}/{wire.ARTIFACTS}"))


def _describe_nice(view: RunView) -> str:
    """The nice value that the job was given, and why; empty where it was given none."""
    nice, chosen = view.manifest.get("nice"), view.manifest.get("priority")
    if not isinstance(nice, int) or not isinstance(chosen, dict):
        return ""
    words = f"priority {chosen.get('priority')} ({chosen.get('why')}): nice {nice}"
    return words if chosen.get("why") == ASKED else f"{words}; set yours with `holdfast config set priority normal`"


def _read_verdict(view: RunView) -> tuple[Verdict | None, str | None]:
    judgement = read_judgement(view.run_dir, view.attempt)
    verdict = judgement.verdict if judgement is not None else None
    return verdict, read_objection(view, verdict)


def _read_duration(view: RunView) -> float | None:
    """Seconds from the job's exec to its end; None when it never ran or has not ended."""
    recorded = view.exit.get("duration_s")
    if isinstance(recorded, (int, float)):
        return float(recorded)
    end = view.end
    if end is None or not end.started_at:
        return None
    try:
        return max(0.0, parse_utc(end.at) - parse_utc(end.started_at))
    except ValueError:
        return None
