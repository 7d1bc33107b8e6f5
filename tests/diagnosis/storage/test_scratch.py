"""Pruning declared scratch on real directories: what goes, what stays, and what no link can lead to."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from holdfast.diagnosis.storage import remove, scratch
from holdfast.diagnosis.storage.neighbours import _list_mapped as list_mapped
from holdfast.diagnosis.storage.scratch import find_scratch, prune_scratch, prune_within
from holdfast.host.clock import format_utc, utc_now
from holdfast.model import wire
from holdfast.model.job import DiskNeeds, JobSpec
from holdfast.model.record import replace
from tests.rundirs import ended, make_run, own_run_id
from tests.waiting import wait_until

pytestmark = pytest.mark.process

RUN, OTHER = "20261120-100000-digits-0a1b", own_run_id("other")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    return directory


@pytest.fixture
def run_dir(tmp_path: Path, work: Path) -> Path:
    return begun(tmp_path, RUN, work)


def begun(root: Path, run_id: str, work: Path, *, hours_ago: float = 1.0, over: bool = True) -> Path:
    """A run of `work` that began some hours ago; `over`: it has ended just now."""
    path = Path(make_run(root / "runs", run_id, ended() if over else None))
    record = json.loads((path / wire.RUN).read_text())
    record["created_at"] = format_utc(os.stat(root).st_mtime - hours_ago * 3600)
    record["job"]["workdir"] = str(work)
    (path / wire.RUN).write_text(json.dumps(record))
    if over:
        write_status(path, {"ended_at": utc_now()})
    return path


def write_status(run_dir: Path, status: dict[str, object] | None) -> None:
    path = Path(wire.attempt_dir(str(run_dir), 1)) / wire.EXIT
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": status}))


def job(work: Path, *patterns: str) -> JobSpec:
    return JobSpec("t", ("true",), str(work), disk=DiskNeeds(scratch=patterns))


def put(path: Path, content: bytes = b"x" * 5000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def checkpoint(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("archive/version", b"3\n")
    return path


@pytest.mark.requirement("STOR-03")
def test_STOR_03_only_declared_scratch_goes_and_is_counted(run_dir: Path, work: Path) -> None:
    for name in ("artifacts/tmp/a.bin.part", "artifacts/tmp/deep/b", "artifacts/model.npz", "notes"):
        put(run_dir / name)
    put(work / "tmp/c.part")
    put(work / "train.py")
    done = prune_scratch(str(run_dir), job(work, "artifacts/tmp", "tmp/**"))
    assert done.failed == done.left_out == ()
    assert done.files == 3
    assert done.freed_bytes >= 3 * 4096
    assert not (run_dir / "artifacts/tmp").exists()
    assert (run_dir / "artifacts/model.npz").exists()
    assert (work / "train.py").exists()
    assert not (work / "tmp/c.part").exists()


def test_a_look_changes_nothing(run_dir: Path, work: Path) -> None:
    put(run_dir / "artifacts/tmp/a")
    found = find_scratch(str(run_dir), job(work, "artifacts/tmp"))
    assert [item.path for item in found.plan.victims] == ["artifacts/tmp/a"]
    assert (run_dir / "artifacts/tmp/a").exists()


@pytest.mark.requirement("CKPT-07", "STOR-03", "B-24")
def test_CKPT_07_a_pattern_over_everything_leaves_a_checkpoint_that_loads(run_dir: Path, work: Path) -> None:
    for step in (1, 2):
        checkpoint(run_dir / f"artifacts/ckpt-{step}.pt")
    put(run_dir / "artifacts/ckpt-3.pt", checkpoint(run_dir / "x.pt").read_bytes()[:-20])
    put(run_dir / "artifacts/metrics.jsonl", b"{}\n")
    done = prune_scratch(str(run_dir), job(work, "artifacts/**"))
    left = sorted(os.listdir(run_dir / "artifacts"))
    assert left == ["ckpt-2.pt", "metrics.jsonl"]
    assert any("newest whole" in text for text in done.kept)


def test_a_checkpoint_directory_with_one_file_that_cannot_be_judged_replaces_nothing(run_dir: Path, work: Path) -> None:
    for step in (100, 200):
        checkpoint(run_dir / f"artifacts/checkpoint-{step}/model.pt")
    put(run_dir / "artifacts/checkpoint-200/optimizer.distcp")
    prune_scratch(str(run_dir), job(work, "artifacts/**"))
    assert "checkpoint-100" in os.listdir(run_dir / "artifacts")


@pytest.mark.requirement("CKPT-07")
@pytest.mark.parametrize("content", [bytes(4096), b"\x80\x02}q\x00.", b""])
def test_CKPT_07_a_newest_file_that_is_not_proven_whole_replaces_nothing(
    run_dir: Path, work: Path, content: bytes
) -> None:
    checkpoint(run_dir / "artifacts/ckpt-1.pt")
    put(run_dir / "artifacts/ckpt-2.pt", content)
    prune_scratch(str(run_dir), job(work, "artifacts/**"))
    assert "ckpt-1.pt" in os.listdir(run_dir / "artifacts")


@pytest.mark.parametrize("name", ["ckpt-{}.ckpt", "step-{}.bin", "model_{}.pth"])
def test_other_endings_of_the_same_format_are_judged_alike(run_dir: Path, work: Path, name: str) -> None:
    for step in (1, 2):
        checkpoint(run_dir / "artifacts" / name.format(step))
    prune_scratch(str(run_dir), job(work, "artifacts/**"))
    assert os.listdir(run_dir / "artifacts") == [name.format(2)]


def test_a_checkpoint_directory_goes_as_a_whole_or_stays(run_dir: Path, work: Path) -> None:
    for step in (100, 200):
        checkpoint(run_dir / f"artifacts/checkpoint-{step}/model.pt")
        put(run_dir / f"artifacts/checkpoint-{step}/trainer_state.json")
    prune_scratch(str(run_dir), job(work, "artifacts/**"))
    assert os.listdir(run_dir / "artifacts") == ["checkpoint-200"]
    assert len(os.listdir(run_dir / "artifacts/checkpoint-200")) == 2


def test_records_declared_results_and_inputs_stay(run_dir: Path, work: Path) -> None:
    put(run_dir / "artifacts/out/result.txt")
    put(work / "data/part.tmp")
    spec = replace(job(work, "artifacts/**", "run.json", "attempts/**", "checkpoints/**", "data/**"))
    put(run_dir / "checkpoints/step-1/x.tmp")
    spec = replace(spec, artifacts=("artifacts/out",), data=(str(work / "data"),))
    before = sorted(str(path) for path in run_dir.rglob("*"))
    assert prune_scratch(str(run_dir), spec).removed == ()
    assert sorted(str(path) for path in run_dir.rglob("*")) == before
    assert (work / "data/part.tmp").exists()


@pytest.mark.requirement("STOR-04", "ETIQ-05")
def test_STOR_04_links_are_never_followed(run_dir: Path, work: Path, tmp_path: Path) -> None:
    outside = put(tmp_path / "outside/precious")
    (run_dir / "artifacts/tmp").mkdir(parents=True)
    (run_dir / "artifacts/tmp/away").symlink_to(outside.parent)
    (run_dir / "artifacts/tmp/file").symlink_to(outside)
    (work / "tmp").symlink_to(outside.parent)
    put(run_dir / "artifacts/tmp/own")
    done = prune_scratch(str(run_dir), job(work, "artifacts/tmp/**", "tmp/**", "tmp"))
    assert outside.exists()
    assert done.removed == (f"{run_dir}/artifacts/tmp/own",)


@pytest.mark.requirement("STOR-04")
def test_STOR_04_a_link_put_in_the_way_after_the_look_leads_nowhere(
    run_dir: Path, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = put(tmp_path / "outside/own")
    put(run_dir / "artifacts/tmp/own")
    look = scratch.find_scratch

    def swap(*args: object, **options: object) -> scratch.ScratchSurvey:
        found = look(*args, **options)  # type: ignore[arg-type]
        (run_dir / "artifacts/tmp").rename(run_dir / "artifacts/was")
        (run_dir / "artifacts/tmp").symlink_to(outside.parent)
        return found

    monkeypatch.setattr(scratch, "find_scratch", swap)
    done = prune_scratch(str(run_dir), job(work, "artifacts/tmp/**"))
    assert done.removed == ()
    assert len(done.failed) == 1
    assert outside.exists()
    assert (run_dir / "artifacts/was/own").exists()


@pytest.mark.requirement("STOR-04")
def test_STOR_04_even_the_same_file_is_not_reached_through_a_link(run_dir: Path, work: Path, tmp_path: Path) -> None:
    put(run_dir / "artifacts/tmp/own")
    plan = find_scratch(str(run_dir), job(work, "artifacts/tmp/**")).plan
    (run_dir / "artifacts/tmp").rename(tmp_path / "moved")
    (run_dir / "artifacts/tmp").symlink_to(tmp_path / "moved")
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        remove.remove_item(str(run_dir), plan.victims[0])
    assert (tmp_path / "moved/own").exists()


def test_another_file_under_the_same_name_is_not_removed(run_dir: Path, work: Path) -> None:
    path = put(run_dir / "artifacts/tmp/own")
    plan = find_scratch(str(run_dir), job(work, "artifacts/tmp/**")).plan
    put(path.with_name("new")).replace(path)
    with pytest.raises(OSError, match="not what was looked at"):
        remove.remove_item(str(run_dir), plan.victims[0])
    assert path.exists()


@pytest.mark.requirement("B-58")
def test_a_file_that_a_process_has_open_stays(run_dir: Path, work: Path) -> None:
    with put(run_dir / "artifacts/tmp/open").open("rb"):
        done = prune_scratch(str(run_dir), job(work, "artifacts/tmp/**"))
    assert done.removed == ()
    assert "open in a process" in done.kept[0]


def test_in_the_working_directory_only_what_changed_while_the_run_lived_goes(run_dir: Path, work: Path) -> None:
    old = put(work / "tmp/old")
    os.utime(old, (1_000_000_000, 1_000_000_000))
    put(work / "tmp/new")
    prune_scratch(str(run_dir), job(work, "tmp/**"))
    assert os.listdir(work / "tmp") == ["old"]


@pytest.mark.requirement("STOR-04")
@pytest.mark.parametrize("over", [True, False])
def test_STOR_04_a_working_directory_that_another_run_shared_is_left_alone(
    run_dir: Path, work: Path, tmp_path: Path, over: bool
) -> None:
    begun(tmp_path, OTHER, work, over=over)
    put(work / "tmp/whose")
    put(run_dir / "artifacts/tmp/own")
    done = prune_scratch(str(run_dir), job(work, "tmp/**", "artifacts/tmp/**"))
    assert (work / "tmp/whose").exists()
    assert OTHER in done.left_out[0]
    assert done.removed == (f"{run_dir}/artifacts/tmp/own",)


@pytest.mark.requirement("STOR-04")
def test_STOR_04_a_living_run_of_another_root_that_stands_there_counts_as_a_neighbour(
    run_dir: Path, work: Path
) -> None:
    put(work / "tmp/whose")
    command = [sys.executable, "-c", "import signal; print(1, flush=True); signal.pause()"]
    environ = {**os.environ, "HOLDFAST_RUN_ID": OTHER}
    with subprocess.Popen(command, env=environ, cwd=work, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            done = prune_scratch(str(run_dir), job(work, "tmp/**"))
        finally:
            child.kill()
    assert done.removed == ()
    assert f"{OTHER} works in it now" in done.left_out[0]


def test_a_run_that_was_over_before_shares_nothing(run_dir: Path, work: Path, tmp_path: Path) -> None:
    other = begun(tmp_path, OTHER, work, hours_ago=9.0)
    long_ago = os.stat(tmp_path).st_mtime - 8 * 3600
    os.utime(f"{wire.attempt_dir(str(other), 1)}/{wire.EXIT}", (long_ago, long_ago))
    put(work / "tmp/own")
    assert len(prune_scratch(str(run_dir), job(work, "tmp/**")).removed) == 1


def test_a_neighbour_whose_record_is_broken_counts_as_one(run_dir: Path, work: Path, tmp_path: Path) -> None:
    other = begun(tmp_path, OTHER, work)
    (other / wire.RUN).write_text("{")
    put(work / "tmp/whose")
    assert prune_scratch(str(run_dir), job(work, "tmp/**")).removed == ()


def test_other_runs_below_the_working_directory_are_not_walked_into(tmp_path: Path) -> None:
    run_dir = begun(tmp_path, RUN, tmp_path)
    other = begun(tmp_path / "elsewhere", OTHER, tmp_path / "far", over=True)
    put(other / "artifacts/tmp/whose")
    prune_scratch(str(run_dir), job(tmp_path, "**/tmp/**"))
    assert (other / "artifacts/tmp/whose").exists()


@pytest.mark.parametrize("place", ["/", "/tmp", "~"])
def test_directories_that_are_nobodys_own_are_refused(run_dir: Path, place: str) -> None:
    found = find_scratch(str(run_dir), job(Path(os.path.expanduser(place)), "holdfast-test-nothing/**"))
    assert "no directory of its own" in found.left_out[0]


def test_a_walk_that_is_cut_short_plans_nothing(run_dir: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        put(run_dir / f"artifacts/tmp/{number}")
    monkeypatch.setattr(scratch, "MOST_ENTRIES", 10)
    found = find_scratch(str(run_dir), job(work, "artifacts/**"))
    assert found.plan.victims == ()
    assert "nothing is planned" in found.left_out[0]


@pytest.mark.requirement("STOR-03")
def test_STOR_03_a_checkpoint_is_never_robbed_of_single_files(run_dir: Path, work: Path) -> None:
    for step in (100, 200):
        checkpoint(run_dir / f"artifacts/checkpoint-{step}/model.pt")
        put(run_dir / f"artifacts/checkpoint-{step}/trainer_state.json")
    done = prune_scratch(str(run_dir), job(work, "artifacts/checkpoint-*/**", "artifacts/*/*.json"))
    assert done.removed == ()
    assert any("part of a checkpoint" in text for text in done.kept)


@pytest.mark.requirement("STOR-03")
def test_STOR_03_a_newest_checkpoint_that_lacks_a_file_does_not_replace_the_one_before(
    run_dir: Path, work: Path
) -> None:
    for name in ("50/model.pt", "50/optimizer.pt", "100/model.pt", "100/optimizer.pt", "200/model.pt"):
        checkpoint(run_dir / f"artifacts/checkpoint-{name}")
    prune_scratch(str(run_dir), job(work, "artifacts/**"))
    assert sorted(os.listdir(run_dir / "artifacts")) == ["checkpoint-100", "checkpoint-200"]


@pytest.mark.requirement("STOR-03")
@pytest.mark.parametrize("target", ["ckpt-1.pt", "deep/ckpt-1.pt"])
def test_STOR_03_what_a_link_named_best_leads_to_stays(run_dir: Path, work: Path, target: str) -> None:
    best = checkpoint(run_dir / "artifacts" / target)
    for step in (2, 3):
        checkpoint(best.parent / f"ckpt-{step}.pt")
    (run_dir / "artifacts/best.pt").symlink_to(target)
    done = prune_scratch(str(run_dir), job(work, "artifacts/**"))
    assert done.removed == (str(best.parent / "ckpt-2.pt"),)
    assert any("best" in text and target in text for text in done.kept)


def test_what_lies_in_a_directory_named_best_stays_unless_it_is_named(run_dir: Path, work: Path) -> None:
    inside = put(run_dir / "artifacts/best/config.json")
    assert prune_scratch(str(run_dir), job(work, "artifacts/**")).removed == ()
    assert prune_scratch(str(run_dir), job(work, "artifacts/best/*.json")).removed == (str(inside),)


def test_results_that_are_declared_by_a_pattern_or_through_a_link_stay(run_dir: Path, work: Path) -> None:
    put(run_dir / "artifacts/out-1.bin")
    real = put(work / "tmp/real.bin")
    (run_dir / "artifacts/linked.bin").symlink_to(real)
    put(work / "tmp/other")
    spec = replace(job(work, "artifacts/**", "tmp/**"), artifacts=("artifacts/out-*.bin", "artifacts/linked.bin"))
    assert prune_scratch(str(run_dir), spec).removed == (str(work / "tmp/other"),)


def test_a_file_that_is_only_mapped_stays(run_dir: Path, work: Path) -> None:
    path = put(run_dir / "artifacts/tmp/mapped", b"x" * 8192)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8")
        facts = path.stat()
        line = next(line for line in mapped.splitlines() if line.endswith(str(path)))
        assert line.split()[4] == str(facts.st_ino)
        found = list_mapped(os.getpid())
    assert (facts.st_dev, facts.st_ino) in found or os.fsdecode(line.split()[3]) != (
        f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}"
    )


@pytest.mark.parametrize("inside", ["", "checkpoints"])
def test_a_working_directory_in_a_runs_directory_is_left_alone(run_dir: Path, tmp_path: Path, inside: str) -> None:
    other = begun(tmp_path, OTHER, tmp_path / "far", hours_ago=9.0)
    put(other / inside / "step-1.tmp")
    found = find_scratch(str(run_dir), job(other / inside, "**/*.tmp"))
    assert found.plan.victims == ()
    assert "directory of a run" in found.left_out[0]


def test_a_working_directory_that_everybody_may_write_in_is_left_alone(run_dir: Path, work: Path) -> None:
    put(work / "tmp/whose")
    work.chmod(0o1777)
    assert "no directory of its own" in find_scratch(str(run_dir), job(work, "tmp/**")).left_out[0]


def test_an_end_that_nobody_saw_is_not_when_its_record_was_written(run_dir: Path, work: Path) -> None:
    hour_ago = os.stat(run_dir).st_mtime - 1800
    write_status(run_dir, None)
    beat = put(Path(wire.attempt_dir(str(run_dir), 1)) / wire.HEARTBEAT, b"{}")
    os.utime(beat, (hour_ago, hour_ago))
    put(work / "tmp/made by hand since")
    assert prune_scratch(str(run_dir), job(work, "tmp/**")).removed == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs mounts")
def test_STOR_04_a_bind_mount_of_the_same_disk_is_not_entered(run_dir: Path, work: Path, tmp_path: Path) -> None:
    precious = put(tmp_path / "precious/data.bin")
    (run_dir / "artifacts/tmp/mounted").mkdir(parents=True)
    own = put(run_dir / "artifacts/tmp/own")
    (run_dir / "artifacts/step-1/deep").mkdir(parents=True)
    program = (
        "import sys; from tests.diagnosis.storage.test_scratch import job; from pathlib import Path;"
        "from holdfast.diagnosis.storage.scratch import prune_scratch;"
        "print(prune_scratch(sys.argv[1], job(Path(sys.argv[2]), 'artifacts/tmp/**')).removed)"
    )
    script = 'set -e; mount --bind "$1" "$2"; shift 2; exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", str(precious.parent), str(run_dir / "artifacts/tmp/mounted")]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    argv = [*command, sys.executable, "-c", program, str(run_dir), str(work)]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, env=environ)
    if "unshare" in ended.stderr or "mount:" in ended.stderr:
        pytest.skip(f"no mounts here: {ended.stderr}")
    assert ended.stdout == f"('{own}',)\n", ended.stderr
    assert precious.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another account's file")
def test_what_belongs_to_another_account_stays(run_dir: Path, work: Path) -> None:
    os.chown(put(run_dir / "artifacts/tmp/theirs"), 65534, 65534)
    done = prune_scratch(str(run_dir), job(work, "artifacts/tmp/**"))
    assert done.removed == ()
    assert "another account" in done.kept[0]


def test_without_declared_scratch_there_is_nothing_to_do(run_dir: Path, work: Path) -> None:
    put(run_dir / "artifacts/tmp/a")
    assert prune_scratch(str(run_dir), job(work)) == scratch.PrunedScratch()


def test_in_a_child_the_answer_is_the_same_and_bounded(
    run_dir: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(run_dir / "artifacts/tmp/a")
    spec = job(work, "artifacts/tmp/**")
    assert prune_within(str(run_dir), spec, 20.0).removed == (f"{run_dir}/artifacts/tmp/a",)
    monkeypatch.setattr(scratch, "prune_scratch", lambda *_, **__: wait_until(lambda: False))
    assert "no answer" in prune_within(str(run_dir), spec, 0.3).failed[0]


def test_a_run_directory_that_has_gone_is_told(tmp_path: Path, work: Path) -> None:
    assert prune_scratch(str(tmp_path / "gone"), job(work, "tmp/**")).failed


def test_a_working_directory_given_through_a_link_is_the_one_behind_it(
    run_dir: Path, work: Path, tmp_path: Path
) -> None:
    put(work / "tmp/own")
    (tmp_path / "link").symlink_to(work)
    assert prune_scratch(str(run_dir), job(tmp_path / "link", "tmp/**")).removed == (f"{work}/tmp/own",)


def test_a_working_directory_that_has_gone_costs_nothing_but_itself(run_dir: Path, tmp_path: Path) -> None:
    put(run_dir / "artifacts/tmp/own")
    done = prune_scratch(str(run_dir), job(tmp_path / "gone", "artifacts/tmp/**"))
    assert len(done.removed) == 1
    assert "is not there" in done.left_out[0]
