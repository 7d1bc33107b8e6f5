"""The ladder: tried for real, remembered for one boot, and chosen from."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from holdfast.host.contain import containment
from holdfast.host.contain.containment import LADDER, ChosenLevel, ProbedLevel, choose_level, probe_levels, try_in_child
from holdfast.host.contain.tree import find_cgroups
from holdfast.model.job import IsolationLevel
from tests.host.families import become
from tests.kernel_calls import set_dumpable
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.mark.skipif(os.geteuid() != 0, reason="root can make groups here")
def test_every_level_is_tried_best_first() -> None:
    places = find_cgroups()
    tops = [f"{place.path}/holdfast" for place in (*places.v1, *([places.unified] if places.unified else []))]
    before = {name for top in tops if os.path.isdir(top) for name in os.listdir(top)}
    found = probe_levels(fresh=True)
    assert tuple(one.level for one in found) == LADDER
    works = {one.level for one in found if one.works}
    assert {IsolationLevel.SUBREAPER, IsolationLevel.PROCESS_GROUP, IsolationLevel.PID_NAMESPACE} <= works
    assert (IsolationLevel.CGROUP_V2 in works) is (places.unified is not None)
    after = {name for top in tops if os.path.isdir(top) for name in os.listdir(top)}
    assert not [name for name in after - before if name.startswith(f"probe-{os.getpid()}-")]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second account")
def test_an_unprivileged_user_gets_the_namespace_and_reasons_for_the_rest() -> None:
    def as_nobody() -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        set_dumpable()
        found = {one.level: one.refusal for one in probe_levels(fresh=True)}
        assert found[IsolationLevel.PID_NAMESPACE] is None
        assert "by uid 65534" in str(found[IsolationLevel.CGROUP_V2])
        assert found[IsolationLevel.SUBREAPER] is None
        chosen = choose_level(IsolationLevel.CGROUP_V2)
        assert chosen.level is None
        assert "no group can be made" in chosen.describe()

    assert os.waitpid(become(as_nobody), 0)[1] == 0


@pytest.mark.slow
def test_the_answer_is_kept_for_this_boot_and_place(isolated_environment: dict[str, str]) -> None:
    first = probe_levels()
    path = f"{isolated_environment['XDG_RUNTIME_DIR']}/holdfast/containment.json"
    assert os.stat(path).st_mode & 0o777 == 0o600
    with open(path) as file:
        (key,) = content = json.load(file)
    assert set(content[key]) == {level.value for level in LADDER}
    content[key]["pid_namespace"] = "told so by the cache"
    with open(path, "w") as file:
        json.dump(content, file)
    assert choose_level().rejected[0] == ProbedLevel(IsolationLevel.PID_NAMESPACE, "told so by the cache")
    assert probe_levels(fresh=True) == first
    assert probe_levels() == first


@pytest.mark.slow
@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": 1}', "\x00\xff"])
def test_a_broken_cache_is_no_cache(content: str, isolated_environment: dict[str, str]) -> None:
    first = probe_levels()
    path = f"{isolated_environment['XDG_RUNTIME_DIR']}/holdfast/containment.json"
    with open(path, "w") as file:
        file.write(content)
    assert probe_levels() == first


@pytest.mark.slow
@pytest.mark.parametrize("value", [1, {"pid_namespace": None}, None])
def test_an_entry_of_another_shape_is_no_answer(value: object, isolated_environment: dict[str, str]) -> None:
    first = probe_levels()
    path = f"{isolated_environment['XDG_RUNTIME_DIR']}/holdfast/containment.json"
    with open(path) as file:
        (key,) = json.load(file)
    with open(path, "w") as file:
        json.dump({key: value}, file)
    assert probe_levels() == first


@pytest.mark.slow
def test_a_cache_that_is_a_link_is_not_followed(isolated_environment: dict[str, str], tmp_path: Path) -> None:
    first = probe_levels()
    path = f"{isolated_environment['XDG_RUNTIME_DIR']}/holdfast/containment.json"
    os.rename(path, tmp_path / "planted")
    planted = (tmp_path / "planted").read_text().replace("null", '"planted"')
    (tmp_path / "planted").write_text(planted)
    os.symlink(tmp_path / "planted", path)
    assert probe_levels() == first
    assert (tmp_path / "planted").read_text() == planted


@pytest.mark.slow
def test_without_a_place_for_the_cache_it_is_tried_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name)
    assert probe_levels() == probe_levels()


def test_the_cache_falls_back_to_the_home_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    probe_levels()
    assert (tmp_path / ".cache/holdfast/containment.json").exists()


def test_a_named_level_is_taken_or_refused_with_its_reason(isolated_environment: dict[str, str]) -> None:
    assert choose_level(IsolationLevel.PROCESS_GROUP) == ChosenLevel(IsolationLevel.PROCESS_GROUP)
    assert choose_level(IsolationLevel.PROCESS_GROUP).describe() == "process_group"
    path = f"{isolated_environment['XDG_RUNTIME_DIR']}/holdfast/containment.json"
    with open(path) as file:
        (key,) = content = json.load(file)
    content[key].update(pid_namespace="no namespaces", cgroup_v2="no v2", cgroup_v1=None)
    with open(path, "w") as file:
        json.dump(content, file)
    refused = choose_level(IsolationLevel.PID_NAMESPACE)
    assert refused.level is None
    assert refused.describe() == "not available here (pid_namespace: no namespaces)"
    best = choose_level()
    assert best.level is IsolationLevel.CGROUP_V1
    assert best.describe() == "cgroup_v1 (not better because pid_namespace: no namespaces; cgroup_v2: no v2)"


def test_a_trial_reports_what_it_raised() -> None:
    def refuse() -> None:
        raise PermissionError(1, "not for you")

    def stumble() -> None:
        raise RuntimeError("words")

    assert try_in_child(lambda: None, deadline_s=LIMIT_S) is None
    assert try_in_child(refuse, deadline_s=LIMIT_S) == "not for you"
    assert try_in_child(stumble, deadline_s=LIMIT_S) == "RuntimeError('words')"
    assert (
        try_in_child(lambda: os.kill(os.getpid(), signal.SIGKILL), deadline_s=LIMIT_S)
        == "the trial ended with status 9"
    )


def test_a_trial_that_hangs_is_given_up_and_not_remembered(
    isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert try_in_child(signal.pause, deadline_s=0.01) == "no answer within 0.01 s"
    monkeypatch.setattr(containment, "_try_namespace", signal.pause)
    found = probe_levels(deadline_s=0.05)
    assert str(found[0].refusal).startswith("no answer")
    assert not os.path.exists(f"{isolated_environment['XDG_RUNTIME_DIR']}/holdfast/containment.json")
