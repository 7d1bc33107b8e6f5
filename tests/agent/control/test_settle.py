"""Having a run of which nobody is left finished: only where it still is so at the moment of acting."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from holdfast.agent.control.settle import settle_run
from holdfast.agent.view.observe import observe_run
from holdfast.model import wire
from tests.rundirs import dead_process, living_process, make_run

pytestmark = pytest.mark.process


def test_a_run_that_somebody_took_up_since_the_look_is_not_called_off(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, supervisor=dead_process())
    looked = observe_run(run_dir)
    assert looked.vanished
    shutil.rmtree(run_dir)
    assert make_run(tmp_path, supervisor=living_process(os.getpid())) == run_dir
    assert not settle_run(looked)
    assert not Path(run_dir, wire.DESIRED).exists()
