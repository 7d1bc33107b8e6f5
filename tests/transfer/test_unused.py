"""What nothing needs any more is removed from a box, and nothing else: unreadable is not unused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.agent.place import unused
from holdfast.host.formats.own_bundle import find_own_root, note_use
from tests.waiting import wait_until

pytestmark = pytest.mark.process

OLD, LATELY = "0" * 16, "1" * 16
TREE, OTHER_TREE = "a" * 64, "b" * 64
RUN = "20261122-100000-digits-5c0e"


@pytest.fixture
def root(isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs root with two bundles and two trees; one of each was not used for a month."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    root = Path(isolated_environment["HOLDFAST_RUNS"])
    for kind, names in (("agent", (OLD, LATELY)), ("code", (TREE, OTHER_TREE))):
        for name in names:
            path = root / f".{kind}-{os.geteuid()}" / name / "lib"
            path.mkdir(parents=True)
            (path / "file").write_text("")
            path.chmod(0o500)
            path.parent.chmod(0o500)
    age(bundle(root, OLD))
    age(tree(root, TREE))
    return root


def bundle(root: Path, name: str) -> Path:
    return root / f".agent-{os.geteuid()}" / name


def tree(root: Path, name: str) -> Path:
    return root / f".code-{os.geteuid()}" / name


def age(path: Path) -> None:
    month_ago = time.time() - 30 * 86400
    os.utime(path, (month_ago, month_ago))


def make_run(root: Path, *, ended: bool, **origin: object) -> None:
    attempt = root / RUN / "attempts" / "1"
    attempt.mkdir(parents=True)
    (root / RUN / "run.json").write_text(json.dumps({"schema": 1, "run_id": RUN, "host": "h", **origin}))
    if ended:
        (attempt / "exit.json").write_text(json.dumps({"schema": 1, "outcome": "failed", "exit_code": 3}))


def test_what_was_not_used_for_a_week_goes(root: Path) -> None:
    answer = unused.remove_unused(str(root))
    assert answer["removed"] == [str(bundle(root, OLD)), str(tree(root, TREE))]
    assert answer["kept"] == {str(bundle(root, LATELY)): "used lately", str(tree(root, OTHER_TREE)): "used lately"}
    assert [path.name for path in bundle(root, OLD).parent.iterdir()] == [LATELY]
    assert [path.name for path in tree(root, TREE).parent.iterdir()] == [OTHER_TREE]


def test_a_bundle_cleans_the_root_that_it_lies_below_whatever_the_account_uses_itself(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_RUNS", str(tmp_path / "own"))
    package = bundle(root, LATELY) / "lib" / "holdfast"
    bundle(root, LATELY).chmod(0o700)
    (bundle(root, LATELY) / "bundle.json").write_text("{}")
    assert find_own_root(str(package)) == str(root)
    assert find_own_root() is None
    monkeypatch.setattr(unused, "find_own_root", lambda: str(root))
    assert unused.remove_unused()["removed"] == [str(bundle(root, OLD)), str(tree(root, TREE))]


def test_an_unfinished_run_keeps_its_bundle_and_any_run_its_tree(root: Path) -> None:
    make_run(root, ended=False, bundle=OLD, code={"tree": TREE, "files": 1, "bytes": 1})
    answer = unused.remove_unused(str(root))
    assert answer["removed"] == []
    assert answer["kept"][str(bundle(root, OLD))] == f"run {RUN} has not ended"
    assert answer["kept"][str(tree(root, TREE))] == f"run {RUN} has its code"


def test_an_ended_run_keeps_its_tree_alone(root: Path) -> None:
    make_run(root, ended=True, bundle=OLD, code={"tree": TREE, "files": 1, "bytes": 1})
    assert unused.remove_unused(str(root))["removed"] == [str(bundle(root, OLD))]


def test_a_record_that_cannot_be_read_keeps_everything(root: Path) -> None:
    make_run(root, ended=True)
    (root / RUN / "run.json").write_text("{")
    answer = unused.remove_unused(str(root))
    assert answer["removed"] == []
    assert "cannot be told" in answer["kept"][str(bundle(root, OLD))]


@pytest.mark.parametrize("where", ["words", "environment"])
def test_a_process_that_uses_one_keeps_it(root: Path, where: str) -> None:
    path = f"{bundle(root, OLD)}/lib"
    words = [path] if where == "words" else []
    environ = {"PYTHONPATH": path} if where == "environment" else {}
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", "print('up', flush=True); input()", *words],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline()
        answer = unused.remove_unused(str(root))
        assert answer["kept"][str(bundle(root, OLD))] == f"process {child.pid} uses it"
    finally:
        child.communicate(b"\n")


def test_an_entry_of_a_clock_keeps_what_it_calls(root: Path, isolated_environment: dict[str, str]) -> None:
    units = Path(isolated_environment["XDG_CONFIG_HOME"]) / "systemd/user"
    units.mkdir(parents=True)
    (units / "holdfast-patrol.service").write_text(f'ExecStart="python3" "-S" "{bundle(root, OLD)}/hf.py" "--"\n')
    answer = unused.remove_unused(str(root))
    assert answer["kept"][str(bundle(root, OLD))] == "an entry of a clock calls it"
    assert answer["removed"] == [str(tree(root, TREE))]


def test_what_is_used_again_meanwhile_comes_back(root: Path) -> None:
    note_use(str(bundle(root, OLD)))
    assert unused._remove(str(bundle(root, OLD)), time.time() - unused.WEEK_S) is False
    assert (bundle(root, OLD) / "lib/file").exists()


def test_what_a_killed_removal_put_aside_goes_later(root: Path) -> None:
    aside = bundle(root, f"{unused.OLD}{OLD}-1-aa")
    aside.mkdir()
    unused.remove_unused(str(root))
    assert aside.exists()  # another removal may look at it now
    before, unused_age = unused.ASIDE_S, -1.0
    unused.ASIDE_S = unused_age
    try:
        unused.remove_unused(str(root))
    finally:
        unused.ASIDE_S = before
    wait_until(lambda: not aside.exists(), what="its end")
