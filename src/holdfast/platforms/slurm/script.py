"""The script of a run as a desk can show it before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.slurm.script import ScriptPlan, mark_job, name_job, render_script
from holdfast.model.runs_root import bundles_dir
from holdfast.model.slurm import SlurmRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.job import JobSpec
    from holdfast.model.place import BoxFacts

ENTRY = "lib/holdfast/agent/__main__.py"


def show_script(job: JobSpec, native: Mapping[str, str], facts: BoxFacts | None, run_id: str) -> str:
    """The script as it would be sent, as far as the place is known."""
    root, start = find_start(facts)
    run_dir = f"{root}/{run_id}"
    record = SlurmRecord(name_job(run_id), mark_job(run_id), dict(native))
    return render_script(ScriptPlan(run_id, run_dir, record, job, (*start, "slurm-batch", "--run", run_dir)))


def find_start(facts: BoxFacts | None) -> tuple[str, tuple[str, ...]]:
    """The runs root, and how an entry of ours is started there."""
    root = "ROOT" if facts is None else facts.root
    bundle = "BUNDLE" if facts is None else f"{bundles_dir(root, facts.uid)}/{facts.bundle}"
    return root, ("python3" if facts is None else facts.python, "-I", "-S", f"{bundle}/{ENTRY}")
