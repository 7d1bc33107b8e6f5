"""Under Yama a job's own account may look at it, where the kernel would only let its ancestors (docs/adr/0016)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.uml.machine import REPOSITORY, Guest

if TYPE_CHECKING:
    from tests.uml.machine import Machine

pytestmark = [pytest.mark.process, pytest.mark.uml, pytest.mark.timeout(300)]


@pytest.mark.slow
@pytest.mark.requirement("DIAG-07")
def test_DIAG_07_the_permission_outlives_exec_and_opens_scope_1_only(machine: Machine) -> None:
    env = {"PYTHONPATH": f"{REPOSITORY}/src", "PYTHONDONTWRITEBYTECODE": "1"}
    done = machine.run(["python", "ptrace.py"], Guest(env=env))
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout) == {
        "scope 0, not": True,
        "scope 0, allowed": True,
        "scope 1, not": False,
        "scope 1, allowed": True,
        "scope 2, not": False,
        "scope 2, allowed": False,
    }
