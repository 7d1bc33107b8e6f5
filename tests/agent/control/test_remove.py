"""Removing runs: only ended ones, only what holdfast made, never through a link."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agent.control import remove
from holdfast.agent.control.run_lock import hold_run_lock
from holdfast.host.contain.create import create_group, find_group
from holdfast.host.files import fallback, files
from holdfast.host.process.processes import identify_self
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, ResourceBusy, StorageError, UsageError
from tests.rundirs import dead_process, ended, make_run, own_run_id, running, write

pytestmark = pytest.mark.process

RUN_ID = "20261120-100000-digits-0a1b"


def test_an_ended_run_is_measured_and_removed_whole(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=ended())
    os.makedirs(f"{run_dir}/checkpoints/deep/er")
    write(f"{run_dir}/checkpoints/deep/er/model.bin", b"x" * 100_000)
    candidate = remove.check_removable(run_dir, root=str(tmp_path))
    assert candidate.size_bytes >= 100_000
    assert candidate.files == 4
    remove.remove_run(candidate, root=str(tmp_path))
    assert os.listdir(tmp_path) == ["isolated"]


def test_a_dry_run_measures_a_run_of_which_nobody_is_left_and_settles_nothing(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=dead_process())
    before = sorted(Path(run_dir).rglob("*"))
    candidate = remove.check_removable(run_dir, root=str(tmp_path), dry_run=True)
    assert candidate.condition == "lost"
    assert sorted(Path(run_dir).rglob("*")) == before


@pytest.mark.requirement("ETIQ-05")
def test_ETIQ_05_links_inside_are_removed_not_followed(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "runs", state=ended())
    outside = tmp_path / "precious"
    outside.mkdir()
    (outside / "weights.bin").write_text("years of work")
    os.symlink(outside, f"{run_dir}/artifacts/link")
    os.symlink(outside / "weights.bin", f"{run_dir}/checkpoints/latest")
    remove.remove_run(remove.check_removable(run_dir, root=str(tmp_path / "runs")), root=str(tmp_path / "runs"))
    assert (outside / "weights.bin").read_text() == "years of work"
    assert not os.path.exists(run_dir)


@pytest.mark.requirement("ETIQ-05")
def test_ETIQ_05_a_link_in_the_place_of_a_run_is_refused(tmp_path: Path) -> None:
    real = make_run(tmp_path / "elsewhere", state=ended())
    (tmp_path / "runs").mkdir()
    os.symlink(real, tmp_path / "runs" / RUN_ID)
    with pytest.raises(StorageError, match="symbolic link"):
        remove.check_removable(f"{tmp_path}/runs/{RUN_ID}", root=f"{tmp_path}/runs")
    assert os.path.exists(f"{real}/run.json")


@pytest.mark.requirement("ETIQ-05")
def test_ETIQ_05_a_path_outside_of_the_root_is_refused(tmp_path: Path) -> None:
    real = make_run(tmp_path / "elsewhere", state=ended())
    (tmp_path / "runs").mkdir()
    for path in (real, f"{tmp_path}/runs/../elsewhere/{RUN_ID}"):
        with pytest.raises(StorageError, match="refused"):
            remove.check_removable(path, root=f"{tmp_path}/runs")
    os.symlink(tmp_path / "elsewhere", tmp_path / "runs" / "shortcut")
    with pytest.raises(StorageError, match="refused"):
        remove.check_removable(f"{tmp_path}/runs/shortcut/{RUN_ID}", root=f"{tmp_path}/runs")


def test_under_a_root_that_is_a_link_runs_and_leftovers_are_removed_as_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to("disk")
    root = f"{tmp_path}/runs"
    run_dir = make_run(root, state=ended())
    os.mkdir(f"{root}/{remove.PREFIX}{RUN_ID[:-4]}ffff")
    remove.remove_run(remove.check_removable(run_dir, root=root), root=root)
    assert remove.sweep_root(root) == 1
    assert os.listdir(root) == []
    assert os.path.islink(root)


def test_a_live_run_is_refused(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=identify_self())
    with pytest.raises(UsageError, match="has not ended"):
        remove.check_removable(run_dir, root=str(tmp_path))


def test_of_a_run_whose_state_is_damaged_the_hint_is_no_verb_that_refuses_it_too(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=dead_process())
    Path(wire.attempt_dir(run_dir, 1), wire.STATE).write_text("")
    with pytest.raises(UsageError, match="it is unreadable") as refused:
        remove.check_removable(run_dir, root=str(tmp_path))
    assert f"rm -r {run_dir}" in str(refused.value.hint)


def test_an_ended_run_with_a_living_process_is_refused(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=ended())
    environment = {**os.environ, "HOLDFAST_RUN_ID": RUN_ID}
    code = "import sys; print(flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, env=environment)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(UsageError, match=str(process.pid)):
            remove.check_removable(run_dir, root=str(tmp_path))
    finally:
        process.communicate(b"")


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / RUN_ID).mkdir()
    (tmp_path / RUN_ID / "thesis.tex").write_text("...")
    with pytest.raises(HoldfastError, match="not known to be a run"):
        remove.check_removable(f"{tmp_path}/{RUN_ID}", root=str(tmp_path))
    assert (tmp_path / RUN_ID / "thesis.tex").exists()


def test_removing_and_restarting_at_once_exclude_each_other(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=ended())
    candidate = remove.check_removable(run_dir, root=str(tmp_path))
    with hold_run_lock(run_dir, what="restart"), pytest.raises(ResourceBusy):
        remove.remove_run(candidate, root=str(tmp_path))
    assert os.path.exists(f"{run_dir}/run.json")


def test_a_run_that_was_started_again_meanwhile_stays(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=ended())
    candidate = remove.check_removable(run_dir, root=str(tmp_path))
    make_run(tmp_path, attempt=2)
    with pytest.raises(UsageError, match="meanwhile"):
        remove.remove_run(candidate, root=str(tmp_path))
    assert os.path.exists(f"{run_dir}/run.json")


def test_an_interrupted_removal_is_finished_by_the_next(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "runs", state=ended())
    os.rename(run_dir, tmp_path / "runs" / f".removing-{RUN_ID}")
    (tmp_path / "runs" / ".removing-thesis").mkdir()
    assert remove.sweep_root(str(tmp_path / "runs")) == 1
    assert os.listdir(tmp_path / "runs") == [".removing-thesis"]


@pytest.mark.requirement("ETIQ-05")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs mounts")
@pytest.mark.parametrize("what", ["directory", "file"])
def test_ETIQ_05_what_is_mounted_in_a_run_is_refused_before_anything_goes(tmp_path: Path, what: str) -> None:
    """A bind mount of the same disk has the device of what is around it."""
    run_dir = make_run(tmp_path / "runs", state=ended())
    precious = tmp_path / "precious"
    place = Path(run_dir, wire.ARTIFACTS, "mounted")
    if what == "directory":
        precious.mkdir()
        place.mkdir()
        (precious / "data").write_text("years of work")
    else:
        precious.write_text("years of work")
        place.write_text("")
    program = """
import sys
from holdfast.agent.control import remove
from holdfast.model.errors import StorageError
run_dir, root = sys.argv[1:]
for dry_run in (True, False):
    try:
        remove.remove_run(remove.check_removable(run_dir, root=root, dry_run=dry_run), root=root)
    except StorageError as error:
        print(error, error.hint)
"""
    script = 'set -e; mount --bind "$1" "$2"; shift 2; exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", str(precious), str(place), sys.executable, "-c", program]
    ended_as = subprocess.run([*command, run_dir, str(tmp_path / "runs")], capture_output=True, text=True, check=False)
    if "unshare" in ended_as.stderr or "mount:" in ended_as.stderr:
        pytest.skip(f"no mounts here: {ended_as.stderr}")
    assert ended_as.stdout.count(f"something is mounted in {run_dir}: {place}") == 2, ended_as
    assert (precious / "data" if what == "directory" else precious).read_text() == "years of work"
    assert os.listdir(tmp_path / "runs") == [os.path.basename(run_dir)]
    assert Path(run_dir, wire.RUN).exists()


def test_a_removal_never_enters_another_mount(tmp_path: Path) -> None:
    """Also where something is mounted after the look."""
    (tmp_path / "top").mkdir()
    parent = os.open("/", files.DIRECTORY)
    try:
        with pytest.raises(OSError, match="something else is mounted here"):
            files.remove_child(parent, "proc", "/proc")
    finally:
        os.close(parent)


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups of this machine belong to root")
def test_empty_control_groups_of_a_run_go_with_it(tmp_path: Path) -> None:
    # Control groups are the whole machine's: other tests must not meet this one.
    run_dir = make_run(tmp_path / "runs", f"20261120-100000-groups-{os.urandom(2).hex()}", ended())
    name = f"{os.path.basename(run_dir)}.1"
    if create_group(name) is None:
        pytest.skip("no control groups here")
    remove.remove_run(remove.check_removable(run_dir, root=str(tmp_path / "runs")), root=str(tmp_path / "runs"))
    assert find_group(name) is None


def test_what_is_kept_in_memory_goes_with_its_run_unless_another_directory_has_its_name(
    tmp_path: Path, isolated_environment: dict[str, str]
) -> None:
    """A copy that was made by hand: what lies in memory is the newest record of the other one."""
    root, run_id, other = isolated_environment["HOLDFAST_RUNS"], own_run_id("kept"), own_run_id("other")
    gone = f"{tmp_path}/gone/state.json"
    for name in (run_id, other):
        for attempt in (1, 2):
            assert not fallback.commit(name, attempt, gone, b"{}")
    try:
        run_dir, copied = make_run(root, run_id, ended()), make_run(tmp_path / "copies", run_id, ended())
        remove.remove_run(remove.check_removable(copied, root=f"{tmp_path}/copies"), root=f"{tmp_path}/copies")
        assert {(run_id, 1), (run_id, 2)} <= set(fallback.list_aside())
        remove.remove_run(remove.check_removable(run_dir, root=root), root=root)
        assert [name for name, _ in fallback.list_aside() if name in (run_id, other)] == [other, other]
    finally:
        for name in (run_id, other):
            for attempt in (1, 2):
                fallback.clear(name, attempt)
