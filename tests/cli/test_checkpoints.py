"""``holdfast checkpoints``: what is there, whether it is right, what may go, one plain file."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.host.process.processes import identify_self
from tests.rundirs import ended, make_run, running
from tests.training.directories import damage, make_directory, rewrite

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli

RUN = "20261120-100000-digits-0a1b"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_directory(tmp_path / "ck")


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir())


@pytest.mark.slow
def test_a_place_is_a_run_a_directory_a_checkpoint_or_here(
    holdfast: Command, directory: Path, isolated_environment: dict[str, str], tmp_path: Path
) -> None:
    run_dir = make_run(isolated_environment["HOLDFAST_RUNS"], RUN, ended())
    os.rename(directory, tmp_path / "checkpoints")
    (tmp_path / "elsewhere").mkdir()
    here = holdfast("checkpoints", "ls", "--json").json()
    assert [item["step"] for item in here["checkpoints"]] == [4, 3, 2, 1]
    for place in ("checkpoints", "./checkpoints", str(tmp_path / "checkpoints")):
        assert holdfast("checkpoints", "ls", "--json", place).json() == here
    assert holdfast("checkpoints", "ls", cwd=tmp_path / "elsewhere").code == 64
    os.rmdir(f"{run_dir}/checkpoints") if os.path.isdir(f"{run_dir}/checkpoints") else None
    os.rename(tmp_path / "checkpoints", f"{run_dir}/checkpoints")
    for place in ("digits", RUN, run_dir):
        found = holdfast("checkpoints", "ls", "--json", place).json()
        assert found["directory"] == f"{run_dir}/checkpoints"
    assert holdfast("checkpoints", "verify", f"{run_dir}/checkpoints/step-2").code == 0


@pytest.mark.slow
def test_what_is_not_there_is_66(holdfast: Command, tmp_path: Path) -> None:
    assert holdfast("checkpoints", "ls", "nothing").code == 66
    assert holdfast("checkpoints", "nothing").code == 66
    assert holdfast("checkpoints", "verfy").err.endswith(
        "did you mean `holdfast checkpoints verify`? else: holdfast checkpoints ls verfy\n"
    )
    assert holdfast("checkpoints", "ls", "./nothing").code == 66
    (tmp_path / "empty").mkdir()
    assert holdfast("checkpoints", "ls", "./empty").code == 0
    for verb in ("verify", "show"):
        assert holdfast("checkpoints", verb, "./empty").code == 66


@pytest.mark.slow
def test_the_list_names_everything_and_what_is_wrong_with_it(holdfast: Command, directory: Path) -> None:
    (directory / "step-3").rename(directory / "step-3.bad-1")
    (directory / "step-2" / "state.json").unlink()
    (directory / "best.pt").write_bytes(b"x")
    done = holdfast("checkpoints", "ls", str(directory))
    assert done.code == 0
    lines = {line.split()[0]: line for line in done.out.splitlines()}
    assert "complete" in lines["step-4"]
    assert "0.25" in lines["step-4"]
    assert "set aside" in lines["step-3.bad-1"]
    assert "damaged" in lines["step-2"]
    assert "state.json is missing" in done.err
    assert "best.pt" in done.err


@pytest.mark.requirement("CKPT-04", "VRFY-03")
def test_verify_says_right_wrong_or_not_to_be_told_by_its_exit_code(holdfast: Command, directory: Path) -> None:
    assert holdfast("checkpoints", "verify", "--all", str(directory)).code == 0
    damage(directory / "step-4")
    done = holdfast("checkpoints", "verify", str(directory))
    assert done.code == 65
    assert "a resume would take step-3" in done.err
    assert "state.safetensors" in done.err
    value = holdfast("checkpoints", "verify", "--json", "--all", str(directory)).json()
    assert [one["proof"] for one in value["checkpoints"]] == ["wrong", "right", "right", "right"]
    assert value["exit_code"] == 65
    rewrite(directory / "step-3", version=99)
    assert holdfast("checkpoints", "verify", str(directory / "step-3")).code == 74


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_cannot_be_read_is_never_called_fine(holdfast: Command, directory: Path) -> None:
    (directory / "step-4" / "state.json").chmod(0)
    done = holdfast("checkpoints", "verify", str(directory))
    assert done.code == 74
    assert "unreadable" in done.out


@pytest.mark.slow
def test_show_tells_record_arrays_and_values(holdfast: Command, directory: Path) -> None:
    done = holdfast("checkpoints", "show", str(directory), "--step", "3")
    assert done.code == 0
    assert "step-3" in done.out
    assert "weights  F64   [1000]" in done.out
    assert "state.note" in done.out
    assert "random" not in done.out
    value = holdfast("checkpoints", "show", "--json", str(directory)).json()
    assert value["checkpoint"]["step"] == 4
    assert value["state"]["state"]["lr"] == 0.5
    assert "random" not in value["state"]["run"]
    assert holdfast("checkpoints", "show", str(directory), "--step", "9").code == 66
    assert holdfast("checkpoints", "show", str(directory), "--rank", "1").code == 64


def test_show_of_a_damaged_one_is_an_error_in_words(holdfast: Command, directory: Path) -> None:
    (directory / "step-4" / "checkpoint.json").write_text("{}", encoding="ascii")
    done = holdfast("checkpoints", "show", str(directory / "step-4"))
    assert done.code == 65
    assert "no commit record" in done.err


@pytest.mark.slow
def test_a_record_cannot_steer_the_terminal(holdfast: Command, directory: Path) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07"
    rewrite(
        directory / "step-4",
        reason=evil,
        metrics={"loss": evil, evil: 1},
        tracked={f"a{evil}": {"kind": evil, "replicated": False}},
        versions={evil: evil},
    )
    (directory / f"x{evil}").write_bytes(b"")
    for verb in ("ls", "show", "verify", "prune"):
        done = holdfast("checkpoints", verb, str(directory))
        assert done.code == 0
        assert "\x1b" not in done.out + done.err, verb


@pytest.mark.requirement("CKPT-07", "RAIL-16")
def test_prune_shows_first_and_does_it_when_told(holdfast: Command, directory: Path) -> None:
    dry = holdfast(
        "checkpoints", "prune", str(directory), "--keep-last", "1", "--keep-best", "1", "--metric", "loss:max"
    )
    assert dry.code == 0
    assert "would remove 2" in dry.err
    assert names(directory) == ["step-1", "step-2", "step-3", "step-4"]
    done = holdfast(
        "checkpoints", "prune", "--yes", "--keep-best", "1", "--metric", "loss:max", "--json", str(directory)
    )
    assert [os.path.basename(path) for path in done.json()["removed"]] == ["step-2", "step-3"]
    assert names(directory) == ["step-1", "step-4"]


def test_prune_removes_nothing_by_a_metric_that_no_checkpoint_has(holdfast: Command, directory: Path) -> None:
    for options in ((), ("--yes",)):
        done = holdfast("checkpoints", "prune", *options, "--keep-best", "1", "--metric", "los:max", str(directory))
        assert (done.code, len(names(directory))) == (64, 4), done
        assert "'los'" in done.err
        assert "did you mean loss? logged were loss; --metric NAME:min" in done.err
    for step in range(1, 5):
        rewrite(directory / f"step-{step}", metrics={"loss": "nan"})
    done = holdfast("checkpoints", "prune", "--yes", "--keep-best", "1", str(directory))
    assert (done.code, len(names(directory))) == (64, 4), done
    assert "they have no numbers" in done.err
    assert holdfast("checkpoints", "prune", "--metric", "los:max", str(directory)).code == 0  # no best is asked for


def test_a_number_that_only_a_damaged_checkpoint_has_is_no_number_to_choose_by(
    holdfast: Command, directory: Path
) -> None:
    named = {f"m{number}{'x' * 200}\nholdfast: done": 1.0 for number in range(9)}
    for step in range(1, 5):
        rewrite(directory / f"step-{step}", metrics={"loss": 1.0} if step == 1 else {**named, "loss": 10**400})
    os.unlink(directory / "step-1" / "state.safetensors")
    done = holdfast("checkpoints", "prune", "--yes", "--keep-best", "1", str(directory))
    assert (done.code, len(names(directory))) == (64, 4), done
    assert " and 1 more; --metric NAME:min" in done.err
    assert not any(line.startswith("holdfast: done") or len(line) > 900 for line in done.err.splitlines()), done


def test_prune_says_which_sound_ones_go_beside_those_that_were_set_aside(holdfast: Command, directory: Path) -> None:
    (directory / "step-1").rename(directory / "step-1.bad-1")
    both = holdfast("checkpoints", "prune", "--set-aside", str(directory))
    assert "sound ones are among them, which --keep-last or --keep-best would keep: step-2, step-3\n" in both.err, both
    for options in (("--set-aside", "--keep-last", "9"), ()):
        assert "sound ones" not in holdfast("checkpoints", "prune", *options, str(directory)).err


@pytest.mark.slow
def test_prune_never_leaves_only_wrong_ones(holdfast: Command, directory: Path) -> None:
    damage(directory / "step-4")
    done = holdfast("checkpoints", "prune", "--yes", str(directory))
    assert done.code == 0
    assert "step-4 does not count" in done.err
    assert names(directory) == ["step-3", "step-4"]


@pytest.mark.slow
def test_prune_refuses_while_a_run_writes_there(holdfast: Command, directory: Path) -> None:
    me = identify_self()
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    holder = {"pid": me.pid, "start": str(me.start_ticks), "host": os.uname().nodename, "boot": boot, "run": "digits"}
    with open(directory / ".lock", "w", encoding="ascii") as lock:
        lock.write(json.dumps(holder))
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = holdfast("checkpoints", "prune", "--yes", str(directory))
        assert done.code == 75
        assert "digits" in done.err
        assert "or say --live" in done.err
        assert len(names(directory)) == 4
        assert holdfast("checkpoints", "prune", "--yes", "--live", "--leftovers", str(directory)).code == 0
    assert names(directory) == ["step-4"]


@pytest.mark.slow
def test_prune_wants_sense(holdfast: Command, directory: Path) -> None:
    assert holdfast("checkpoints", "prune", "--metric", "loss:least", str(directory)).code == 64
    assert holdfast("checkpoints", "prune", "--keep-last", "0", str(directory)).code == 64
    assert holdfast("checkpoints", "prune", str(directory / "step-4")).code == 64


@pytest.mark.slow
def test_export_makes_a_file_that_others_open(holdfast: Command, directory: Path, tmp_path: Path) -> None:
    load = pytest.importorskip("safetensors.numpy").load_file
    done = holdfast("checkpoints", "export", str(directory), "out.safetensors", "--name", "state")
    assert done.code == 0
    assert done.out == f"{tmp_path}/out.safetensors\n"
    assert load(tmp_path / "out.safetensors")["weights"][0] == 4.0
    again = holdfast("checkpoints", "export", str(directory), "out.safetensors")
    assert again.code == 74
    assert "--overwrite" in again.err
    assert holdfast("checkpoints", "export", "--overwrite", str(directory), "out.safetensors").code == 0
    assert holdfast("checkpoints", "export", str(directory), "out").code == 64
    assert holdfast("checkpoints", "export", str(directory), "nowhere/out.safetensors").code == 74
    damage(directory / "step-4")
    assert holdfast("checkpoints", "export", "--overwrite", str(directory), "out.safetensors").code == 65


@pytest.mark.slow
def test_a_torch_file_without_torch_says_what_to_do(holdfast: Command, directory: Path, tmp_path: Path) -> None:
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "torch.py").write_text("raise ImportError('none here')", encoding="ascii")
    done = holdfast("checkpoints", "export", str(directory), "x.pt", env={"PYTHONPATH": str(tmp_path / "hide")})
    assert done.code == 64
    assert (
        f"{sys.executable} has none" in done.err or "this Python has none" in done.err,
        "end in .safetensors" in done.err,
    ) == (True, True), done.err
    # One that trained with torch has it for the export, too: a box's own call has no packages at all.
    rewrite(directory / "step-4", versions={"interpreter": "/no/such/python"})
    done = holdfast("checkpoints", "export", str(directory), "x.pt", env={"PYTHONPATH": str(tmp_path / "hide")})
    assert "the Python that trained, /no/such/python, is not there" in done.err


@pytest.mark.slow
def test_a_live_runs_checkpoints_are_only_looked_at(
    holdfast: Command, directory: Path, isolated_environment: dict[str, str]
) -> None:
    run_dir = make_run(isolated_environment["HOLDFAST_RUNS"], RUN, running(), supervisor=identify_self())
    if os.path.isdir(f"{run_dir}/checkpoints"):
        os.rmdir(f"{run_dir}/checkpoints")
    os.rename(directory, f"{run_dir}/checkpoints")
    before = sorted(os.listdir(f"{run_dir}/checkpoints"))
    for verb in ("ls", "verify", "show", "prune"):
        assert holdfast("checkpoints", verb, "digits").code == 0
    assert sorted(os.listdir(f"{run_dir}/checkpoints")) == before


def test_no_verb_shows_the_help(holdfast: Command) -> None:
    done = holdfast("checkpoints")
    assert done.code == 64
    assert "export" in done.err
