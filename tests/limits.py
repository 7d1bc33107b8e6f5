"""A plugin of pytest: a test that blocks, or that signals its process group, harms itself only.

pytest-timeout ends a test that blocks, and takes its timer away when the test fails, for the sake of a debugger: what
a failed test tears down would have no limit. Each teardown gets the test's limit anew. Where a failed test is run once
more (scripts/run_tests.py), all limits are longer.
"""

from __future__ import annotations

import ctypes
import os
import signal

import pytest

from tests.waiting import PATIENCE

# Source: linux/prctl.h.
PR_SET_PDEATHSIG = 1
SETTINGS = pytest.StashKey[object]()


def pytest_configure(config: pytest.Config) -> None:
    """Leave the process group of the others, so that a signal to this one's ends one worker, not the run.

    A worker that hangs does not read that pytest is gone, so it ends with it.
    """
    if hasattr(config, "workerinput"):
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Be patient where that is asked for."""
    for item in items if PATIENCE != 1 else ():
        mark = item.get_closest_marker("timeout")
        limit_s = float(mark.args[0] if mark else config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(limit_s * PATIENCE), append=False)


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: object) -> None:
    """Keep what pytest-timeout found out about the limit of this test."""
    item.stash[SETTINGS] = settings


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Begin the limit anew."""
    if SETTINGS in item.stash:
        item.ihook.pytest_timeout_set_timer(item=item, settings=item.stash[SETTINGS])
