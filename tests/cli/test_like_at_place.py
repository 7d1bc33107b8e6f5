"""``run --like PLACE:RUN``: the job of a run elsewhere as a new one, there, at another place, or here."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.host.files.code import store
from tests.desk.orders.ordering import PLACE, Desk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.timeout(120), pytest.mark.slow]


@pytest.fixture
def desk(
    tmp_path: Path, isolated_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Desk]:
    """A desk with a tree and the place `box`, and a second one, `other`, without anything in it."""
    assert isolated_environment
    made = Desk(tmp_path, f"{tmp_path_factory.getbasetemp()}/near-box")
    made.places.write_text(made.places.read_text() + f'\n[other]\nkind = "local"\nroot = "{tmp_path}/other"\n')
    yield made
    made.clear()


def begin(desk: Desk, *words: str) -> str:
    """A run at `box` that is over; its name."""
    before = desk.list_runs()
    done = desk.run("--name", "first", "--env", "LR=1e-4", *words)
    assert done.returncode == 0, done.stderr
    (made,) = desk.list_runs() - before
    return f"{PLACE}:{made}"


def plan(desk: Desk, *words: str) -> dict[str, Any]:
    """What a dry run says; nothing is begun."""
    before = desk.list_runs()
    done = desk.say("run", "--dry-run", "--json", *words)
    assert done.returncode == 0, done.stderr
    assert desk.list_runs() == before
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_at_the_same_place_it_has_the_code_of_that_run_whatever_is_here_now(desk: Desk) -> None:
    (desk.tree / "conf.yaml").write_text("lr: 1\n")
    name = begin(desk, "--config", "conf.yaml", "--timeout", "5m", "--", "python3", "train.py")
    (desk.tree / "train.py").write_text("print('edited')\n")
    told = plan(desk, "--like", name, "--timeout", "7m", "--env", "SEED=3", "--input", "train.py")
    assert (told["place"], told["code"]["files"], told["job"]["workdir"]) == (PLACE, 2, ".")
    assert (told["job"]["name"], told["job"]["command"]) == ("first", ["python3", "train.py"])
    assert (told["job"]["config"], told["job"]["inputs"]) == ("conf.yaml", ["train.py"])
    assert (told["job"]["env"], told["job"]["timeouts"]["total_s"]) == ({"LR": "1e-4", "SEED": "3"}, 420.0)
    done = desk.say("run", "--like", name, "--name", "second")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert f"with the code of {name}" in done.stderr
    (newest,) = desk.list_runs() - {name.removeprefix(f"{PLACE}:")}
    record = json.loads((desk.root / newest / "run.json").read_text())
    assert record["job"]["config"] == os.path.join(desk.root, newest, store.WORK, "conf.yaml")
    # Another directory of this desk brings its own code.
    here = desk.say("run", "--like", name, "--workdir", ".")
    assert (here.returncode, here.stdout) == (0, "edited\n"), here.stderr
    # A restart has the code of its run, and says so with the command for the other.
    again = desk.say("restart", "-f", name)
    assert (again.returncode, again.stdout) == (0, "trained\n"), again.stderr
    assert (
        f"its code is the one that was sent; with the code of this directory: holdfast run --on {PLACE}" in again.stderr
    )
    assert f"--like {name} --workdir ." in again.stderr


def test_at_another_place_it_needs_the_same_code_here_and_what_is_of_that_box_is_refused(desk: Desk) -> None:
    data = desk.root.parent / "data"
    data.mkdir(exist_ok=True)
    name = begin(desk, "--data", str(data), "--", "python3", "train.py")
    refused = desk.say("run", "--like", name, "--on", "other", "--dry-run")
    assert refused.returncode == 64
    assert f"of the machine of {name} alone: data: {data}" in refused.stderr
    assert f"say it for other: --data {data}" in refused.stderr
    told = plan(desk, "--like", name, "--on", "other", "--data", "/data/there")
    assert (told["place"], told["job"]["data"], told["job"]["workdir"]) == ("other", ["/data/there"], ".")
    assert told["code"]["files"] == 1
    (desk.tree / "train.py").write_text("print('edited')\n")
    other = desk.say("run", "--like", name, "--on", "other", "--data", "/data/there", "--dry-run")
    assert (other.returncode, "this directory has another one" in other.stderr) == (64, True), other.stderr
    assert plan(desk, "--like", name, "--on", "other", "--data", "/d", "--workdir", ".")["code"]["files"] == 1


def test_here_it_runs_in_the_directory_with_the_same_code(desk: Desk) -> None:
    name = begin(desk, "--", "python3", "train.py")
    done = desk.say("run", "--like", name, "--on", "local")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "at local: python3 train.py" in done.stderr
    without = begin(desk, "--no-code", "--", "true")
    assert desk.say("run", "--like", without, "--on", "local", "--dry-run").returncode == 64
    assert desk.say("run", "--like", without, "--on", "local", "--workdir", ".").returncode == 0


def test_a_run_of_this_machine_goes_to_a_place_with_what_its_directory_has_now(desk: Desk) -> None:
    assert desk.say("run", "--name", "near", "--input", "train.py", "--", "python3", "train.py").returncode == 0
    told = plan(desk, "--like", "near", "--on", PLACE)
    assert (told["job"]["inputs"], told["job"]["workdir"], told["code"]["files"]) == (["train.py"], ".", 1)
    assert desk.say("run", "--name", "far", "--input", "/etc/hostname", "--", "true").returncode == 0
    refused = desk.say("run", "--like", "far", "--on", PLACE, "--dry-run")
    assert (refused.returncode, "inputs: /etc/hostname" in refused.stderr) == (64, True), refused.stderr


def test_secrets_are_named_and_never_carried_over(desk: Desk) -> None:
    pushed = desk.say("secret", "push", PLACE, "TOKEN", "--from-env", "SAID", environ={"SAID": "hush"})
    assert pushed.returncode == 0, pushed.stderr
    name = begin(desk, "--secret", "TOKEN", "--", "python3", "train.py")
    said = desk.say("run", "--like", name, "--on", "other", "--dry-run")
    assert "its secrets are those of other, and are not carried over: TOKEN" in said.stderr
    assert "hush" not in said.stdout + said.stderr


def test_lines_of_setup_of_the_place_are_not_taken_for_the_job_s(desk: Desk) -> None:
    plain = desk.places.read_text()
    desk.places.write_text(plain.replace(f"[{PLACE}]\n", f'[{PLACE}]\nsetup = ["export WHERE=box"]\n'))
    name = begin(desk, "--setup", "export OWN=1", "--", "python3", "train.py")
    told = plan(desk, "--like", name, "--on", "other")
    assert (told["job"]["setup"], told["setup"]) == (["export OWN=1"], [])
    assert plan(desk, "--like", name)["setup"] == ["export WHERE=box"]
    desk.places.write_text(plain.replace(f"[{PLACE}]\n", f'[{PLACE}]\nsetup = ["export WHERE=else"]\n'))
    refused = desk.say("run", "--like", name, "--dry-run")
    assert (refused.returncode, "say those of the job: --setup LINE" in refused.stderr) == (64, True), refused.stderr
    assert plan(desk, "--like", name, "--setup", "true")["job"]["setup"] == ["true"]


def test_what_is_not_there_is_said(desk: Desk) -> None:
    assert desk.say("run", "--like", f"{PLACE}:nosuch", "--dry-run").returncode == 66
    assert desk.say("run", "--like", "nowhere:x", "--dry-run").returncode in (64, 66)
    assert desk.say("run", "--like", f"{PLACE}:", "--dry-run").returncode == 64
    assert os.path.isdir(desk.tree)
