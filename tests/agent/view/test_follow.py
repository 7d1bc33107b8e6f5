"""Following a run: what counts as nobody being there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.view.follow import is_untaken
from holdfast.agent.view.observe import observe_run
from tests.rundirs import dead_process, ended, living_process, make_run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def test_an_attempt_waits_for_the_supervisor_of_the_one_before_and_counts_as_untaken_after_it(tmp_path: Path) -> None:
    """That one may still be telling people of the end, for up to half a minute."""
    kept, left = tmp_path / "kept", tmp_path / "left"
    run_dir = make_run(kept, state=ended(exit_code=3), supervisor=living_process(os.getpid()))
    make_run(kept, attempt=2)
    assert not is_untaken(observe_run(run_dir))
    run_dir = make_run(left, state=ended(exit_code=3), supervisor=dead_process())
    make_run(left, attempt=2)
    assert is_untaken(observe_run(run_dir))


def test_a_first_attempt_is_untaken_until_it_has_a_supervisor(tmp_path: Path) -> None:
    assert is_untaken(observe_run(make_run(tmp_path / "a")))
    assert not is_untaken(observe_run(make_run(tmp_path / "b", supervisor=dead_process())))
