"""``holdfast pull``: a run at a place behind a real sshd comes home with its receipt; its copy is read, not driven."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.desk.receipts import check_receipt, read_receipt
from holdfast.model.errors import ResultMissing
from holdfast.model.run import Outcome
from tests.cli.far import FarRun, far_run
from tests.cli.queues import say
from tests.proxy import Proxy
from tests.rundirs import ended, make_run, running
from tests.transfer.code.repositories import list_tree, make_repository
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = [pytest.mark.cli, pytest.mark.timeout(240)]
__all__ = ["far_run"]
RUN = "20261120-100000-digits-0a1b"
MIB = 1 << 20


@pytest.fixture
def run_dir(isolated_environment: dict[str, str]) -> Path:
    """A run of this machine that has ended."""
    return Path(make_run(isolated_environment["HOLDFAST_RUNS"], RUN, ended()))


def list_copy(copy: Path) -> dict[str, bytes]:
    """What of a run is in its copy."""
    own = ("copy.json", "receipt.json", ".holdfast-roster")
    return {path: data for path, data in list_tree(copy).items() if path not in own}


@pytest.mark.slow
@pytest.mark.requirement("VRFY-04", "VRFY-05", "VRFY-13", "XPORT-03")
def test_a_far_run_comes_home_and_its_receipt_holds_until_anything_changes(
    holdfast: Command, far_run: FarRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    far_run.write("artifacts/weights.bin", os.urandom(3 * MIB))
    far_run.write("artifacts/metrics.jsonl", b'{"loss": 1.0}\n')
    # Of a live run the copy is one of a moment, which opens no gate.
    live = holdfast("pull", far_run.name, timeout_s=LONG_S)
    assert "has not ended: this is a copy of" in live.out
    assert check_receipt("gpu1", far_run.run_id)[1] == "it was pulled while the run had not ended"
    refused = holdfast("attach", f"./{far_run.run_id}")
    assert refused.code == 77
    assert f"name the run: gpu1:{far_run.run_id}" in refused.err
    holdfast("stop", "--now", far_run.name, timeout_s=LONG_S)

    again = holdfast("pull", far_run.name, "--json", timeout_s=LONG_S).json()
    copy = tmp_path / far_run.run_id
    assert again["receipt"]["live"] is False
    assert again["sent"] < MIB
    assert list_copy(copy) == list_tree(far_run.run_dir)
    receipt, why = check_receipt("gpu1", far_run.run_id)
    assert (receipt is not None, why) == (True, "")
    assert json.loads((copy / "receipt.json").read_text())["roster"] == receipt.roster  # type: ignore[union-attr]
    assert "artifacts/metrics.jsonl" in [one.path for one in receipt.tried if one.how == "loaded"]  # type: ignore[union-attr]
    # One byte at home, with its old times.
    file = copy / "artifacts" / "metrics.jsonl"
    seen = file.stat()
    file.write_bytes(b'{"loss": 2.0}\n')
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert "artifacts/metrics.jsonl is not what was pulled" in check_receipt("gpu1", far_run.run_id)[1]
    assert holdfast("pull", far_run.name, timeout_s=LONG_S).out.count("1 file, 14 B came") == 1
    assert check_receipt("gpu1", far_run.run_id)[1] == ""
    # A late writer at the source.
    far_run.write("artifacts/late.json", b"{}")
    assert "was written after its roster was made" in check_receipt("gpu1", far_run.run_id)[1]
    holdfast("pull", far_run.name, timeout_s=LONG_S)
    assert check_receipt("gpu1", far_run.run_id)[1] == ""
    # What no pull takes is in no roster.
    late = far_run.run_dir / "checkpoints" / "late.pt"
    late.symlink_to("/elsewhere/late.pt")
    assert "not in the copy, and there now: checkpoints/late.pt" in check_receipt("gpu1", far_run.run_id)[1]
    late.unlink()
    # Nor what was left out as no harm when it was pulled, and is harm now.
    late = far_run.run_dir / "artifacts" / "late.pt"
    os.mkfifo(late)
    holdfast("pull", far_run.name, timeout_s=LONG_S)
    assert check_receipt("gpu1", far_run.run_id)[1] == ""
    late.unlink()
    late.symlink_to("/elsewhere/late.pt")
    assert "not in the copy, and there now: artifacts/late.pt" in check_receipt("gpu1", far_run.run_id)[1]
    late.unlink()
    shutil.rmtree(copy)
    assert "is not in" in check_receipt("gpu1", far_run.run_id)[1]
    assert check_receipt("gpu1", RUN) == (None, f"gpu1:{RUN} was not pulled to this machine")


@pytest.mark.slow
@pytest.mark.requirement("BSSH-01")
def test_BSSH_01_the_whole_cycle_leaves_nothing_outside_of_the_runs_root(
    holdfast: Command, far_run: FarRun, tmp_path: Path
) -> None:
    home, kept = far_run.box.home("box"), (far_run.root, far_run.box.home("box") / ".local/state/holdfast")

    def list_home() -> set[Path]:
        found = {path for path in home.rglob("*") if not any(path.is_relative_to(one) for one in kept)}
        return {path for path in found if path.is_file()}

    before = list_home()
    script = 'import os\nprint("trained")\nopen(f"{os.environ[\'HOLDFAST_ARTIFACT_DIR\']}/score", "w").write("7")\n'
    code = make_repository(tmp_path / "code", {"train.py": script})
    words = ("run", "--on", "gpu1", "-d", "--json", "--name", "cycle", "--", "python3", "train.py")
    began = holdfast(*words, cwd=code, timeout_s=LONG_S)
    assert began.code == 0, (began.out, began.err)
    run_id = began.json()["run_id"]
    assert holdfast("wait", f"gpu1:{run_id}", timeout_s=LONG_S).code == 0
    assert holdfast("logs", f"gpu1:{run_id}", timeout_s=LONG_S).out == "trained\n"
    assert holdfast("pull", f"gpu1:{run_id}", str(tmp_path / "copy"), timeout_s=LONG_S).code == 0
    assert (tmp_path / "copy/artifacts/score").read_text() == "7"
    assert holdfast("rm", "-y", f"gpu1:{run_id}", timeout_s=LONG_S).code == 0
    assert not (far_run.root / run_id).exists()
    assert list_home() == before


@pytest.mark.slow
@pytest.mark.requirement("XPORT-02")
@pytest.mark.gotcha("U12")
def test_XPORT_02_a_link_that_is_cut_is_gone_on_with(
    holdfast: Command, far_run: FarRun, tmp_path: Path, isolated_environment: dict[str, str]
) -> None:
    size = 20 * MIB
    far_run.write("artifacts/weights.bin", os.urandom(size))
    holdfast("stop", "--now", far_run.name, timeout_s=LONG_S)
    with Proxy(far_run.box.port) as link:
        alias = far_run.box.alias("box", via=link.port, ControlMaster="no", ControlPath="none")
        config = Path(isolated_environment["XDG_CONFIG_HOME"]) / "holdfast" / "places.toml"
        config.write_text(config.read_text().replace(far_run.box.alias("box"), alias))
        holdfast("pull", "--dry-run", far_run.name, timeout_s=LONG_S)
        link.cut_after(8 * MIB)
        done = holdfast("pull", far_run.name, str(tmp_path / "copy"), timeout_s=LONG_S)
    assert "going on" in done.err
    assert "in 2 tries" in done.out
    assert list_copy(tmp_path / "copy") == list_tree(far_run.run_dir)
    came = int(float(done.out.split(" files, ")[2].split(" MiB came")[0]) * MIB)
    assert came <= 1.3 * size


def end_with(run_dir: Path, name: str, data: bytes) -> Path:
    """A result of the run, as its end recorded it; the file."""
    file = run_dir / "artifacts" / name
    file.write_bytes(data)
    seen = file.stat()
    path = run_dir / "attempts" / "1" / "exit.json"
    told = {**json.loads(path.read_text()), "outcome": "succeeded"}
    told["artifacts"] = [{"name": name, "bytes": seen.st_size, "modified": round(seen.st_mtime, 3)}]
    path.write_text(json.dumps(told))
    return file


@pytest.mark.requirement("VRFY-04")
def test_a_result_that_changed_after_its_end_is_named_and_takes_the_place_of_no_good_one(
    holdfast: Command, run_dir: Path, tmp_path: Path
) -> None:
    file = end_with(run_dir, "big.bin", b"good" * 1000)
    good = file.read_bytes()
    assert holdfast("pull", RUN, "home", timeout_s=LONG_S).code == 0
    file.write_bytes(b"bad!" * 1000)
    os.utime(file, (1.8e9, 1.8e9))
    again = holdfast("pull", RUN, "home", timeout_s=LONG_S)
    assert again.code == ResultMissing.exit_code, again
    assert "damaged: artifacts/big.bin: is not what it was at the end, when it was proven" in again.out
    assert (tmp_path / "home/artifacts/big.bin").read_bytes() == good
    # What is nowhere else is taken, and named.
    first = holdfast("pull", RUN, "other", timeout_s=LONG_S)
    words = "damaged: artifacts/big.bin: has the size but not the time of the end"
    assert (first.code, words in first.out) == (73, True), first
    taken = holdfast("pull", RUN, "home", "--accept", "big.bin", "--json", timeout_s=LONG_S)
    assert taken.code == 0, taken
    assert [one["path"] for one in taken.json()["receipt"]["accepted"]] == ["artifacts/big.bin"]
    assert (tmp_path / "home/artifacts/big.bin").read_bytes() == file.read_bytes()


@pytest.mark.requirement("VRFY-04")
def test_a_later_attempt_that_was_stopped_hides_no_damage_and_what_is_gone_is_named(
    holdfast: Command, run_dir: Path, tmp_path: Path
) -> None:
    file = end_with(run_dir, "big.bin", b"good" * 1000)
    assert holdfast("pull", RUN, "home", timeout_s=LONG_S).code == 0
    file.write_bytes(b"bad")
    os.utime(file, (1.8e9, 1.8e9))
    make_run(run_dir.parent, RUN, ended(Outcome.STOPPED, 3), attempt=2, created_at="2027-01-15T08:01:00.000Z")
    again = holdfast("pull", RUN, "home", timeout_s=LONG_S)
    assert (tmp_path / "home/artifacts/big.bin").read_bytes() == b"good" * 1000
    assert again.code == ResultMissing.exit_code, again
    assert "big.bin: is not what it was at the end, when it was proven (attempt 1); the one that is here" in again.out
    shutil.rmtree(run_dir / "attempts" / "2")
    file.unlink()
    for _ in range(2):
        gone = holdfast("pull", RUN, "home", timeout_s=LONG_S)
        assert gone.code == ResultMissing.exit_code, gone
        assert "damaged: artifacts/big.bin: was there at the end, when it was proven, and is gone" in gone.out
        assert "the one that is here still is, and stays" in gone.out
    assert "artifacts" not in gone.err
    assert holdfast("pull", RUN, "home", "--accept", "big.bin", timeout_s=LONG_S).code == 0
    (tmp_path / "home/artifacts/big.bin").unlink()
    found = holdfast("pull", "home", "--verify")
    assert (found.code, "artifacts/big.bin: is not there any more" in found.out) == (73, True), found


@pytest.mark.requirement("VRFY-04")
def test_a_copy_whose_run_is_gone_is_held_against_its_own_roster(
    holdfast: Command, run_dir: Path, tmp_path: Path
) -> None:
    (run_dir / "artifacts" / "big.bin").write_bytes(b"good" * 1000)
    assert holdfast("pull", RUN, "home", timeout_s=LONG_S).code == 0
    shutil.rmtree(run_dir)
    whole = holdfast("pull", "./home", "--verify")
    assert (whole.code, "every byte is what was pulled" in whole.out) == (0, True), whole
    file = tmp_path / "home" / "artifacts" / "big.bin"
    seen = file.stat()
    file.write_bytes(b"bad!" * 1000)
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    found = holdfast("pull", "./home", "--verify")
    assert found.code == ResultMissing.exit_code
    assert "damaged: artifacts/big.bin: is not what was pulled" in found.out
    assert f"holdfast pull local:{RUN} {tmp_path}/home" in found.out
    both = holdfast("pull", "--verify", "home", "./home", "--json").json()
    assert [one["damaged"][0]["path"] for one in both["copies"]] == ["artifacts/big.bin"] * 2
    assert say("pull", "--verify", "home", "--dry-run").code == 64


@pytest.mark.slow
def test_a_copy_is_read_by_every_reading_verb_and_refused_by_every_other(
    holdfast: Command, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (run_dir / "artifacts" / "model.json").write_text("{}")
    done = holdfast("pull", RUN, "mine", timeout_s=LONG_S)
    assert "proven" in done.out
    for words in (
        *(["show"], ["logs"], ["diagnose"], ["files"], ["handbook"], ["attach"], ["wait"], ["checkpoints", "ls"]),
    ):
        read = holdfast(*words, "./mine", timeout_s=LONG_S)
        assert "is a copy of local, taken at " in read.err or words[0] == "checkpoints", words
        assert read.code in (0, 66), (words, read.err)
    assert "copy of local, taken at" in holdfast("show", "./mine").out
    holdfast("cp", "./mine/artifacts/model.json", "out.json")
    assert Path("out.json").read_text() == "{}"
    acting = (
        *(["stop"], ["restart"], ["adopt"], ["limit", "--timeout", "1h"], ["checkpoint"], ["prune", "--yes"]),
        *(["rm", "--yes"], ["checkpoints", "prune", "--yes"], ["sentinel", "--for", "ended"]),
    )
    for words in acting:
        refused = holdfast(*words, "./mine", timeout_s=LONG_S)
        assert refused.code in (64, 77), (words, refused.err)
        assert "copy of local" in refused.err, words
    assert holdfast("exec", "./mine", "--", "true").code == 77
    assert Path("mine/run.json").is_file()
    again = holdfast("pull", "./mine", "other")
    assert again.code == 64
    assert f"holdfast pull local:{RUN}" in again.err
    (tmp_path / "mine").rename(tmp_path / RUN)  # under the run's own name it is a copy, too
    assert holdfast("stop", f"./{RUN}").code == 77


@pytest.mark.slow
def test_several_runs_go_into_directories_of_their_own_and_damage_is_told(
    holdfast: Command, run_dir: Path, tmp_path: Path, isolated_environment: dict[str, str]
) -> None:
    other = "20261120-100000-other-0a1b"
    second = Path(make_run(isolated_environment["HOLDFAST_RUNS"], other, ended()))
    (second / "artifacts" / "torn.jsonl").write_text('{"a": 1}\n{"a"')
    (second / "artifacts" / "model.onnx").write_bytes(b"x")
    plan = holdfast("pull", "--dry-run", f"local:{RUN}", other, str(tmp_path / "all"), timeout_s=LONG_S)
    assert plan.out.count("nothing was pulled (dry run)") == 2
    plans = holdfast(
        "pull", "--dry-run", "--json", f"local:{RUN}", other, str(tmp_path / "all"), timeout_s=LONG_S
    ).json()
    assert [one["run_id"] for one in plans["runs"]] == [RUN, other]
    assert not (tmp_path / "all").exists()
    done = holdfast("pull", f"local:{RUN}", other, str(tmp_path / "all"), timeout_s=LONG_S)
    assert done.code == ResultMissing.exit_code
    assert "damaged: artifacts/torn.jsonl: line 2 has no end" in done.out
    assert "*.onnx (1 file)" in done.out
    torn = ("--accept", "artifacts/torn.jsonl")
    accepted = holdfast("pull", other, str(tmp_path / "all" / other), *torn, timeout_s=LONG_S)
    assert (accepted.code, "accepted as it is: artifacts/torn.jsonl: line 2" in accepted.out) == (0, True)
    assert list_copy(tmp_path / "all" / RUN) == list_tree(run_dir)
    assert list_copy(tmp_path / "all" / other) == list_tree(second)
    # A part of a run does not take the place of what proves all of it.
    holdfast("pull", RUN, str(tmp_path / "part"), "--only", "*.json", timeout_s=LONG_S)
    kept = read_receipt("local", RUN)
    assert kept is not None
    assert kept.directory == str(tmp_path / "all" / RUN)
    # Nor does it prove all of it where nothing else does.
    third = RUN[:-1] + "d"
    (Path(make_run(isolated_environment["HOLDFAST_RUNS"], third, ended())) / "artifacts/a.txt").write_text("a")
    holdfast("pull", third, str(tmp_path / "some"), "--only", "exit.json", timeout_s=LONG_S)
    assert "options left out the others" in check_receipt("local", third)[1]
    assert holdfast("pull", other, str(tmp_path / "all" / RUN)).code == 64


@pytest.mark.slow
def test_a_copy_of_a_live_run_is_not_the_living_run(
    holdfast: Command, isolated_environment: dict[str, str], tmp_path: Path
) -> None:
    make_run(isolated_environment["HOLDFAST_RUNS"], RUN, running())
    copy = str(tmp_path / "copy")
    holdfast("pull", RUN, copy, timeout_s=LONG_S)
    shown = holdfast("show", copy, "--json").json()
    assert shown["reachability"]["reach"] == "elsewhere"
    assert "before it had ended" in shown["note"]
    assert holdfast("wait", copy).code == 77
    assert holdfast("logs", "-f", copy).code == 77
