"""The memory limit around a run that has none of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.agent.supervise.recorder import Recorder
from holdfast.agent.supervise.watch import memory
from holdfast.agent.supervise.watch.memory import MemoryWatch, find_limit, read_unreclaimable
from holdfast.model import wire
from holdfast.model.job import JobSpec, Limits

pytestmark = pytest.mark.contract

GIB = 1024**3


class Stage:
    """A watch over a control group that is a directory of the test's."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits | None = None) -> None:
        self.group = root / "group"
        self.group.mkdir()
        (root / "run" / "attempts" / "1").mkdir(parents=True)
        self.recorder = Recorder(f"{root}/run", "20261120-104501-t-3fa2", 1)
        spec = JobSpec("t", ("x",), "/", limits=limits or Limits())
        context: Any = SimpleNamespace(spec=spec, recorder=self.recorder)
        self.alerts: list[tuple[str, dict[str, Any]]] = []
        self.watch = MemoryWatch(context, lambda name, **data: self.alerts.append((name, data)))
        found = (10 * GIB, f"{self.group}/memory.max")
        monkeypatch.setattr(memory, "find_limit", lambda _: found)

    def fill(self, gib: float) -> dict[str, object]:
        (self.group / "memory.stat").write_text(f"anon {int(gib * GIB)}\nfile 5\n")
        return self.watch.judge(1 * GIB, os.getpid())


@pytest.mark.requirement("LIM-09", "MON-10")
def test_LIM_09_nine_tenths_of_a_limit_around_the_run_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, monkeypatch)
    assert stage.fill(5.0) == {"memory_limit_bytes": 10 * GIB, "memory_share": 0.5}
    assert stage.alerts == []
    for gib in (9.5, 8.5, 9.5):
        assert stage.fill(gib)["memory_share"] == gib / 10
    ((name, data),) = stage.alerts
    assert (name, data["limit_bytes"], data["threshold_bytes"]) == ("memory_high", 10 * GIB, 9 * GIB)
    assert data["source"].endswith("memory.max")
    request = json.loads(Path(stage.recorder.path(wire.CHECKPOINT_REQUEST)).read_text())
    assert (request["reason"], request["used_bytes"]) == ("memory", int(9.5 * GIB))
    stage.fill(7.0)
    stage.fill(9.5)
    assert len(stage.alerts) == 2, "again after it was clearly over"


@pytest.mark.requirement("LIM-09")
def test_LIM_09_a_limit_of_its_own_is_the_watchdogs_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path, monkeypatch, Limits(memory_bytes=2 * GIB))
    assert stage.fill(9.9) == {"memory_limit_bytes": 2 * GIB, "memory_share": 0.5}
    assert stage.alerts == []


def test_what_cannot_be_read_is_no_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path, monkeypatch)
    assert stage.watch.judge(None, os.getpid()) == {"memory_limit_bytes": 10 * GIB, "memory_share": None}
    assert stage.watch.judge(4 * GIB, os.getpid())["memory_share"] == 0.4, "the run's own tree is known"
    monkeypatch.setattr(memory, "find_limit", lambda _: (None, ""))
    free = MemoryWatch(cast("Any", stage.watch._context), lambda *_: None)
    assert free.judge(4 * GIB, os.getpid()) == {"memory_limit_bytes": None, "memory_share": None}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("anon 7\nfile 3", 7),
        ("rss 1\ntotal_rss 9\ntotal_cache 5", 9),
        ("total_rss 0\nanon 4", 0),
        ("", None),
        ("anon x", None),
    ],
)
def test_anonymous_memory_is_read_from_either_version(tmp_path: Path, text: str, found: int | None) -> None:
    (tmp_path / "memory.stat").write_text(text)
    assert read_unreclaimable(str(tmp_path)) == found
    assert read_unreclaimable(str(tmp_path / "none")) is None


def test_the_limit_around_this_process_is_that_of_its_groups() -> None:
    limit, source = find_limit(os.getpid())
    assert (limit is None) == (source == "")
