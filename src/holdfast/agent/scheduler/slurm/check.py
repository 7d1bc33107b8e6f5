"""What can be said of a job before it is handed to Slurm, from where its commands run; nothing is leased or started.

Cards, memory, disks and the command are a node's: they are checked there, before the job starts.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping

from holdfast.agent.detached import build_command
from holdfast.core.slurm.script import ScriptPlan, list_directives, mark_job, name_job, render_script
from holdfast.core.slurm.texts import read_duration, read_fields
from holdfast.core.slurm.warning_lead import judge_lead, read_lead_s
from holdfast.host.files.filesystems import filesystem_of, is_local
from holdfast.host.job.measured_saves import find_save_s
from holdfast.model.errors import PreflightFailed, StorageError
from holdfast.model.finding import Finding, Level, PreflightReport, report_preflight
from holdfast.model.job import JobSpec
from holdfast.model.slurm import SlurmRecord
from holdfast.model.units import format_duration

from .commands import call
from .facts import select_partitions
from .files import read_record, write_script
from .submit import ask_whether_it_would_run

SCRIPT, ROOT, WARNING, NODE = "slurm.script", "slurm.root", "slurm.warning", "slurm.node"
TIME = "time.warning"


def examine(
    directory: str, run_id: str, job: JobSpec, options: Mapping[str, str], environ: Mapping[str, str], *, strict: bool
) -> PreflightReport:
    """Check a job that would be the run `run_id`; `directory` is one for its script alone, below the runs root.

    `options` are the place's options of sbatch, below those of the job.

    Raises:
        PlaceError: Slurm does not answer.
        StorageError: the script cannot be written.
    """
    known = SlurmRecord(name_job(run_id), mark_job(run_id), dict(options))
    plan = ScriptPlan(run_id, directory, known, job, build_command("slurm-batch", "--run", directory))
    findings = (
        _check_script(plan, environ),
        *_check_root(os.path.dirname(directory)),
        *_check_warning(plan),
        Finding(NODE, Level.UNKNOWN, "the node", "cards, memory, disks and the command are checked there"),
    )
    return report_preflight(job.name, findings, strict=strict)


def _check_script(plan: ScriptPlan, environ: Mapping[str, str]) -> Finding:
    write_script(plan.run_dir, render_script(plan))
    try:
        said = ask_whether_it_would_run(plan.run_dir, environ)
    except PreflightFailed as error:
        return Finding(SCRIPT, Level.FAIL, "sbatch --test-only", str(error), error.hint)
    return Finding(SCRIPT, Level.PASS, "sbatch --test-only", said)


def _check_root(root: str) -> Iterator[Finding]:
    """Whether the runs root is seen by the nodes, as far as this machine can know."""
    kind = filesystem_of(root)[0]
    lines = call(("scontrol", "show", "node", "--oneliner")).splitlines()
    others = {read_fields(line).get("NodeHostName", "") for line in lines if line} - {os.uname().nodename.split(".")[0]}
    if not others or not is_local(root):
        where = f"{kind or 'unknown'}, " + ("which other machines may see" if others else "on the only node")
        yield Finding(ROOT, Level.PASS if kind else Level.UNKNOWN, root, where)
    else:
        seen = f"lies on {kind}, a disk of this machine's own as far as it knows, and the nodes are others"
        there = shlex.join(("srun", "ls", "-d", root))
        remedy = f"name a directory that every node sees: `root` of the place; or see it there: {there}"
        yield Finding(ROOT, Level.WARN, root, seen, remedy)


def _check_warning(plan: ScriptPlan) -> Iterator[Finding]:
    """Whether the warning ahead of the time limit leaves time to work (SLM-04)."""
    asked = list_directives(plan)
    meant = select_partitions(asked.get("partition"))
    limits = [one.max_time_s if one.default_time_s is None else one.default_time_s for one in meant]
    of_partition = min((limit_s for limit_s in limits if limit_s is not None), default=None)
    limit_s = read_duration(asked["time"]) if "time" in asked else of_partition
    lead_s = read_lead_s(asked["signal"])
    wrong = None if lead_s is None else judge_lead(lead_s, limit_s, None)
    if wrong is not None:
        yield Finding(WARNING, Level.WARN, "the warning", *wrong)


def check_attempt(run_dir: str, environ: Mapping[str, str], now_epoch_s: float) -> Iterator[Finding]:
    """Whether the warning ahead of the time limit comes early enough for a save as it was measured (SLM-04).

    Looked at in each attempt: the script of a job that is put back stays as it is, and saves grow.
    """
    try:
        record = read_record(run_dir)
    except StorageError as error:
        yield Finding(TIME, Level.UNKNOWN, "warning of Slurm", f"not told: {error}", error.hint)
        return
    if record is None or record.lead_s is None:
        return
    end = environ.get("SLURM_JOB_END_TIME", "")
    left_s = float(end) - now_epoch_s if end.isascii() and end.isdigit() else None
    wrong = judge_lead(record.lead_s, left_s, find_save_s(run_dir))
    if wrong is None:
        seen = f"comes {format_duration(record.lead_s)} before the time limit"
        yield Finding(TIME, Level.PASS, "warning of Slurm", seen)
    else:
        # `show` has no room for remedies, and nobody is there to be told anything else.
        yield Finding(TIME, Level.WARN, "warning of Slurm", "; ".join(wrong), wrong[1])
