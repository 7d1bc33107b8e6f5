"""What a supervisor holds for life: what each run needs, and neither checks, diagnosis, cards nor the store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

pytestmark = pytest.mark.process

SOURCE = str(Path(holdfast.__file__).parents[1])
NOT_HELD = (
    "holdfast.agent.checks",
    "holdfast.agent.supervise.lease.card_lease",
    "holdfast.agent.supervise.end.retry",
    "holdfast.agent.supervise.watch.place_end",
    "holdfast.model.nodes",
    "holdfast.agent.plan.systemd_scope",
    "holdfast.cli",
    "holdfast.diagnosis.cards",
    "holdfast.diagnosis.ended.judge",
    "holdfast.diagnosis.live",
    "holdfast.diagnosis.logs",
    "holdfast.store",
    "holdfast.platforms",
    "dataclasses",
    "hashlib",
    "inspect",
    "subprocess",
    "traceback",
)
MOST_MODULES = 164


def load(module: str) -> set[str]:
    """The modules of a clean interpreter that has loaded this one."""
    code = f"import sys; sys.path.insert(0, {SOURCE!r}); import {module}; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_supervisor_holds_only_what_each_run_needs() -> None:
    modules = load("holdfast.agent.supervisor_process")
    assert "holdfast.agent.supervise.supervisor" in modules
    held = tuple(f"{name}." for name in NOT_HELD)
    assert sorted(name for name in modules if name in NOT_HELD or name.startswith(held)) == []
    assert len([name for name in modules if name.startswith("holdfast")]) <= MOST_MODULES


def test_a_worker_has_loaded_before_it_forks_what_each_run_needs() -> None:
    modules = load("holdfast.agent.queue.worker")
    assert {"holdfast.agent.checks.preflight", "holdfast.agent.checks.postflight"} <= modules
    assert not {name for name in modules if name.startswith(("holdfast.cli", "holdfast.diagnosis.live"))}
