"""The batch script of a run: readable, complete, and the same for the same job. Pure.

The supervisor is the batch process itself: the script becomes it. So the warning ahead of the time limit reaches it at
once, and Slurm has its exit code for the job's. Nothing is started beside it, nothing detaches, no card is leased.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.model.job import JobSpec
from holdfast.model.record import record, replace
from holdfast.model.slurm import SlurmRecord

from .options import NO_REQUEUE, lay_over
from .warning_lead import WARNING, choose_lead_s, read_lead_s

_PLAIN = re.compile(r"[A-Za-z0-9._/+=@:,%^-]+\Z")


@record
class ScriptPlan:
    """What a script is made of; `command` is the supervisor's argument vector, `run_dir` where its log goes.

    `array` are the tasks of an array, with the most that run at once: ``0-99%8``; empty for a single job. `save_s` is
    what a save took, if known.
    """

    run_id: str
    run_dir: str
    record: SlurmRecord
    job: JobSpec
    command: Sequence[str]
    save_s: float | None = None
    array: str = ""


def name_job(run_id: str) -> str:
    """What Slurm calls a run's job: its name and the last letters of its id."""
    return "-".join(run_id.split("-")[2:])


def mark_job(run_id: str) -> str:
    """The comment of a run's job, by which it is found again."""
    return f"holdfast:{run_id}"


def list_directives(plan: ScriptPlan) -> dict[str, str]:
    """The options of sbatch for a run, by their long names; those that were asked for win over what the job says."""
    job = plan.job
    asked = lay_over(plan.record.options, job.slurm)
    found = {
        "job-name": plan.record.name,
        "comment": plan.record.comment,
        "chdir": plan.run_dir,
        "output": f"{plan.run_dir.replace('%', '%%')}/slurm-{'%A_%a' if plan.array else '%j'}.log",
        "open-mode": "append",
        "nodes": str(job.nodes),
        **({"ntasks": "1"} if job.nodes == 1 else {"ntasks-per-node": "1"}),
        **({} if NO_REQUEUE in asked else {"requeue": ""}),
    }
    if plan.array:
        found["array"] = plan.array
    if job.limits.cpus is not None and "cpus-per-task" not in asked:
        found["cpus-per-task"] = str(max(1, round(job.limits.cpus + 0.499)))
    if job.limits.memory_bytes is not None and not {"mem", "mem-per-cpu", "mem-per-gpu"} & asked.keys():
        found["mem"] = f"{-(-job.limits.memory_bytes >> 20)}M"
    cards = job.gpus.wanted
    if cards and not {"gres", "gpus", "gpus-per-node", "gpus-per-task"} & asked.keys():
        found["gres"] = f"gpu:{cards}"
    if job.timeouts.total_s is not None and "time" not in asked:
        found["time"] = str(int(-(-(job.timeouts.total_s + choose_lead_s(job, plan.save_s)) // 60)))
    if "signal" not in asked:
        found["signal"] = f"B:{WARNING}@{choose_lead_s(job, plan.save_s):.0f}"
    return {**found, **asked}


def note_lead(plan: ScriptPlan) -> SlurmRecord:
    """The record of a script's job, with how long before its time limit the script has it warned."""
    return replace(plan.record, lead_s=read_lead_s(list_directives(plan)["signal"]))


def render_script(plan: ScriptPlan) -> str:
    """The script, whose first act is to become the supervisor."""
    what = f"Sweep {plan.run_id}: each task is a run" if plan.array else f"Run {plan.run_id}"
    lines = ["#!/bin/sh", f"# {what} of holdfast; its supervisor is the batch process."]
    for name, value in list_directives(plan).items():
        lines.append(f"#SBATCH --{name}" + (f"={_quote_directive(value)}" if value else ""))
    lines += ["", "exec " + " ".join(_quote(word) for word in plan.command), ""]
    return "\n".join(lines)


def _quote_directive(value: str) -> str:
    """A value as sbatch reads its own lines: a blank or ``#`` would end it. Source: sbatch's _get_next_opt."""
    return value if _PLAIN.match(value) else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _quote(word: str) -> str:
    return word if _PLAIN.match(word) and "%" not in word else "'" + word.replace("'", "'\\''") + "'"
