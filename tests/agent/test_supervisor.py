from __future__ import annotations

import pytest

from tests.agent.driving import Drive, job

pytestmark = pytest.mark.process


def test_first(drive: Drive) -> None:
    run = drive(*job("exit_with", 3))
    end = run.ended()
    assert end.exit_code == 3, run.log()
    print(run.log(), run.events())
    assert 0
