"""The warning ahead of the time limit: how long before it, and whether that is enough. Pure; times are in seconds.

Source: sbatch(1), ``--signal``: the warning may come up to a minute earlier than asked for, never later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.units import format_duration

from .options import SIGNAL
from .texts import read_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.job import JobSpec

WARNING = "USR1"
"""What leads to a requeue of our own; scancel and preemption send TERM. Source: docs/slurm.md."""
MARGIN_S = 60.0
"""For Slurm's own tick, a slow file system, and the records of the end."""
SAVE_S = 30.0
"""How long a save takes where nothing is known of it: the grace that a job has by default."""
FACTOR = 2.0
"""One save may just have begun when the warning comes."""
EARLY_S = 60.0


def choose_lead_s(job: JobSpec, save_s: float | None = None) -> float:
    """How long before the time limit the warning is to come: twice what a save takes, and a minute.

    `save_s` is what one was measured to take; the job's own grace counts where it is longer.
    """
    known = [value for value in (save_s, job.grace_s) if value is not None]
    return FACTOR * max(known, default=SAVE_S) + MARGIN_S


def read_lead_s(signal: str) -> float | None:
    """The lead in a value of ``--signal``; a minute where it names none, None where no warning is heard."""
    found = SIGNAL.match(signal)
    return None if found is None else float(found[1] or 60)


def judge_lead(lead_s: float, limit_s: float | None, save_s: float | None) -> tuple[str, str] | None:
    """What is wrong with a lead, and what to change; None where nothing is. `limit_s` is the time limit of the job."""
    if limit_s is not None and limit_s <= lead_s + EARLY_S:
        seen = (
            f"the warning comes {format_duration(lead_s)} before the time limit, or up to a minute earlier, and the "
            f"job has {format_duration(limit_s)} in all: it is asked to leave as soon as it begins, again and again"
        )
        return seen, "give it more time (--slurm time=MINUTES), or warn later (--slurm signal=B:USR1@SECONDS)"
    if save_s is not None and lead_s < FACTOR * save_s + MARGIN_S:
        wanted_s = FACTOR * save_s + MARGIN_S
        seen = (
            f"a save took {format_duration(save_s)}, and the warning comes {format_duration(lead_s)} before the time "
            f"limit: twice a save and a minute are {format_duration(wanted_s)}"
        )
        return seen, (
            "the script of a job that is put back stays as it is: save more often, or stop the run and "
            f"`holdfast restart` it, which warns {format_duration(wanted_s)} ahead; in a job file grace: says it"
        )
    return None


def find_lead_warning(job: JobSpec, options: Mapping[str, str]) -> str:
    """What is wrong with the lead of a job that is to be submitted, in words; empty where nothing is, or is known."""
    lead_s = read_lead_s(options["signal"]) if "signal" in options else choose_lead_s(job)
    limit_s = read_duration(options.get("time", ""))
    return "" if lead_s is None else "; ".join(judge_lead(lead_s, limit_s, None) or ())
