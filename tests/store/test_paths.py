"""Where holdfast keeps what is its own."""

from __future__ import annotations

import pytest

from holdfast.store.paths import default_root

pytestmark = pytest.mark.pure


def test_where_runs_are_kept() -> None:
    assert default_root({"HOLDFAST_RUNS": "/a", "XDG_DATA_HOME": "/data"}) == "/a"
    assert default_root({}).endswith("/.local/share/holdfast/runs")
    assert default_root({"XDG_DATA_HOME": "/data/me/"}) == "/data/me/holdfast/runs"
    assert default_root({"XDG_DATA_HOME": "not/absolute"}).endswith("/.local/share/holdfast/runs")
