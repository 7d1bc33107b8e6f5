"""Jobs in images at a place: an account without rights, real Podman without root, real ssh."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.cli.placed.loopback import PLACE, Loopback
from tests.runtimes import CONTAINERS_CONF, NAME
from tests.sshd import Sshd, end_masters, skip_without_rights
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Ended

pytestmark = [pytest.mark.cli, pytest.mark.slow, pytest.mark.timeout(300)]

TRAIN = """
import json, os, sys
import holdfast.training
uid_map = open("/proc/self/uid_map").read().split()
facts = {"uid": os.getuid(), "cwd": os.getcwd(), "environ": dict(os.environ), "mapped": len(uid_map) > 3}
facts["argv"] = sys.argv[1:]
json.dump(facts, open(os.environ["HOLDFAST_RUN_DIR"] + "/artifacts/facts.json", "w"))
"""
ADDED_BY_RUNTIMES = {"HOME", "USER", "LOGNAME", "PATH", "HOSTNAME", "TERM", "container", "PWD", "LC_CTYPE"}
OF_CONTAINERS = {"NVIDIA_VISIBLE_DEVICES", "HOLDFAST_MACHINE_ID"}


class ImageBox:
    """The place with a store of its account's own, in which `image` is."""

    def __init__(self, loopback: Loopback, tar: Path) -> None:
        self.loopback = loopback
        copy = loopback.sshd.root / "image.tar"
        shutil.copy(tar, copy)
        copy.chmod(0o644)
        conf = loopback.home / ".config" / "containers"
        conf.mkdir(parents=True)
        (conf / "containers.conf").write_text(CONTAINERS_CONF)
        (conf / "storage.conf").write_text('[storage]\ndriver = "vfs"\n')
        loopback.give(loopback.home / ".config")
        made = self.podman("import", "--quiet", str(copy), f"{NAME}:1")
        if made.code:
            pytest.skip(f"podman without root makes no image here: {made.err.strip()[-300:]}")
        tried = self.podman(
            *("run", "--rm", "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096", "--network=host", f"{NAME}:1"),
            "/bin/true",
        )
        if tried.code:
            pytest.skip(f"podman without root runs no container here: {tried.err.strip()[-300:]}")
        digest = self.podman("image", "inspect", "--format={{.Digest}}", f"{NAME}:1")
        self.image = f"{NAME}@{digest.out.strip()}"

    def podman(self, *words: str) -> Ended:
        """Ask it as the account."""
        return self.loopback.type_on_box(shlex.join(["podman", *words]))

    def wait_until_empty(self) -> None:
        """A supervisor removes its container when all else is done."""
        wait_until(lambda: not self.podman("ps", "--all", "--quiet").out, what="its container was removed")


@pytest.fixture(scope="module")
def made(image_tars: tuple[Path, Path]) -> Iterator[ImageBox]:
    """A box whose account may have containers."""
    skip_without_rights()
    for program in ("podman", "runc", "newuidmap"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if not os.path.exists("/etc/subuid"):
        pytest.skip("no /etc/subuid, over which the box of the tests lays one of its own")
    with Sshd.started(options="PermitUserEnvironment yes") as sshd:
        yield ImageBox(Loopback(sshd), image_tars[0])


@pytest.fixture
def box(
    made: ImageBox, isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[ImageBox]:
    """The box as a place of this test's desk, which stands in a tree with a ``train.py``."""
    assert isolated_environment
    monkeypatch.setenv("HOLDFAST_SSH", str(made.loopback.sshd.program))
    made.loopback.add()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path / "tree")
    yield made
    end_masters()


def read_facts(run_dir: Path) -> dict[str, object]:
    return json.loads((run_dir / "artifacts" / "facts.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.requirement("CTR-01", "CTR-03", "CTR-06", "LEASE-06")
def test_a_run_of_a_desk_is_in_its_image_there_without_root(box: ImageBox) -> None:
    desk, number = box.loopback, box.loopback.number
    done = desk.there(
        "run", "--on", PLACE, "--gpus", "1", "--image", box.image, "--name", "far", "--", "python3", "train.py"
    )
    assert done.code == 0, done
    (run_dir,) = desk.runs.glob("*-far-*")
    facts = read_facts(run_dir)
    inside, leased = facts["environ"], json.loads((run_dir / "attempts/1/manifest.json").read_text())
    assert (facts["uid"], facts["cwd"], facts["mapped"]) == (number, f"{run_dir}/work", True)
    assert isinstance(inside, dict)
    (card,) = leased["devices"]
    assert inside["CUDA_VISIBLE_DEVICES"] == inside["NVIDIA_VISIBLE_DEVICES"] == card["card_uuid"]
    named = ADDED_BY_RUNTIMES | OF_CONTAINERS
    assert set(inside) - named == set(leased["environment_added"]) - named
    resolved = json.loads((run_dir / "attempts/1/image.json").read_text())
    assert (resolved["runtime"], resolved["rootless"]) == ("podman", True)
    assert (run_dir / "artifacts/facts.json").stat().st_uid == number
    box.wait_until_empty()


@pytest.mark.requirement("CTR-05", "CTR-11")
def test_what_runs_there_is_looked_into_and_stopped_from_the_desk(box: ImageBox) -> None:
    desk = box.loopback
    words = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.1)"
    began = desk.there(
        *("run", "--on", PLACE, "-d", "--gpus", "1", "--no-code", "--image", box.image, "--name", "long", "--json"),
        *("--", "python3", "-c", words),
    )
    name = f"{PLACE}:{json.loads(began.out)['run_id']}"
    wait_until(lambda: "ready" in desk.there("logs", name).out, what="the job")
    asked = desk.there("exec", name, "--", "sh", "-c", 'cat /proc/1/comm; echo "$CUDA_VISIBLE_DEVICES"; exit 9')
    assert (asked.code, asked.out.splitlines()[0], "GPU-" in asked.out) == (9, "podman-init", True), asked
    shown = json.loads(desk.there("show", name, "--json").out)
    pids = {one["inner_pid"]: str(one["pid"]) for one in shown["container"]["processes"]}
    looked = desk.there("diagnose", name).out
    assert (f"pid {pids[max(pids)]} (python3)" in looked, "(podman)" in looked) == (True, False), looked
    assert desk.there("restart", name, "--timeout", "1h", "--dry-run").out == "timeout none -> 1h00m\n"
    assert desk.there("stop", name).code == 0
    box.wait_until_empty()
    again = desk.there("restart", name)
    assert again.code == 0, again
    assert desk.there("stop", "--now", name).code == 0
    box.wait_until_empty()


def test_jobs_of_its_queue_are_in_their_image(box: ImageBox) -> None:
    desk = box.loopback
    done = desk.there("submit", "--on", PLACE, "--name", "one", "--image", box.image, "--", "python3", "train.py")
    assert done.code == 0, done
    grid = ("sweep", "submit", "--on", PLACE, "--name", "grid", "--grid", "lr=1", "--image", box.image, "--wait")
    assert desk.there(*grid, "--", "python3", "train.py").code == 0
    assert desk.there("wait", f"{PLACE}:one", f"{PLACE}:grid/").code == 0
    found = [read_facts(run) for name in ("one", "grid") for run in desk.runs.glob(f"*-{name}*")]
    assert [bool(fact["argv"]) for fact in found] == [False, True]
    box.wait_until_empty()


@pytest.mark.requirement("PRE-04", "CTR-07")
def test_an_image_that_is_not_there_is_refused_with_the_command_for_there(box: ImageBox) -> None:
    desk, absent = box.loopback, f"org/train@sha256:{'b' * 64}"
    command = f"on {PLACE}: podman pull {absent}"
    for words, code in ((("run",), 78), (("preflight",), 78), (("submit", "--paused", "--group", "kept"), 0)):
        done = desk.there(*words, "--on", PLACE, "--image", absent, "--", "true")
        assert (done.code, command in done.out + done.err) == (code, True), done
    moving = desk.there("submit", "--on", PLACE, "--image", f"{NAME}:1", "--", "true")
    assert (moving.code, box.image in moving.err) == (64, True), moving
