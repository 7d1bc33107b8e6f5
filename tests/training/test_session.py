"""`training.run` in this process: what is tracked comes back, what does not fit is refused by name."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import training
from holdfast.training import exit_stages

if TYPE_CHECKING:
    from pathlib import Path

np = pytest.importorskip("numpy")

pytestmark = pytest.mark.contract


def train(directory: Path, steps: int, tracked: dict[str, Any], **options: Any) -> training.Run:
    with training.run(directory, every=options.pop("every", 2), **options) as run:
        run.track(**tracked)
        for _ in run.steps(steps):
            for value in tracked.values():
                np.add(value, 1, out=value)
            run.log(loss=float(run.step))
    return run


@pytest.mark.requirement("LIB-02")
def test_LIB_02_a_stop_is_saved_then_closes_loader_trackers_and_process_group_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    class Workers:
        def __iter__(self) -> Any:
            return iter(range(100))

        def __len__(self) -> int:
            return 100

    def attempt() -> None:
        with training.run(tmp_path) as run:
            batches = run.batches(Workers())
            monkeypatch.setattr(batches, "close", lambda: order.append(f"loader {(tmp_path / 'step-1').is_dir()}"))
            run.on_stop(lambda why: order.append("tracker"))
            for _ in run.steps(5):
                next(batches)
                run.stop()

    monkeypatch.setattr(exit_stages, "destroy_process_group", lambda: order.append("process group"))
    with pytest.raises(training.Stopped):
        attempt()
    assert order == ["loader True", "tracker", "process group"]


@pytest.mark.slow
def test_arrays_come_back_in_place(tmp_path: Path) -> None:
    train(tmp_path, 3, {"weights": np.zeros(4)})
    weights = np.full(4, 9.0)
    run = train(tmp_path, 5, {"weights": weights})
    assert weights.tolist() == [5.0] * 4
    assert run.step == 5


def test_a_finished_run_does_nothing_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, 3, {"weights": np.zeros(4)})
    weights = np.zeros(4)
    train(tmp_path, 3, {"weights": weights})
    assert weights.tolist() == [3.0] * 4
    assert "all 3 steps are done already (step 3 in " in capsys.readouterr().err
    train(tmp_path, 2, {"weights": weights})
    words = capsys.readouterr().err
    assert "all 2 steps are done already (step 3 in " in words
    assert ", 1 more than this script asks for)" in words


@pytest.mark.slow
def test_a_loop_of_quick_steps_saves_and_stops_where_it_was_told(tmp_path: Path) -> None:
    """Its steps are shorter than `session.LOOK_S`: between two looks only what must not wait is looked at."""
    asked: list[int] = []

    def loop() -> None:
        with training.run(tmp_path, every=7, keep_last=50, asynchronous=False) as run:
            run.track(weights=np.zeros(4))
            for step in run.steps(500):
                if step == 5:
                    asked.append(run.save().step)
                if step == 200:
                    run.stop()

    with pytest.raises(training.Stopped) as stopped:
        loop()
    assert stopped.value.step == 201
    there = sorted(int(path.name.removeprefix("step-")) for path in tmp_path.glob("step-*"))
    assert there == sorted([*asked, *range(7, 201, 7), 201])


def test_plain_values_live_in_the_state(tmp_path: Path) -> None:
    for steps, expected in ((2, 0.0), (4, 2.0)):
        with training.run(tmp_path) as run:
            run.track(best=0.0)
            for step in run.steps(steps):
                if step == 0:
                    assert run.state["best"] == 0.0
                if step == 2:
                    assert run.state["best"] == expected
                run.state["best"] = float(step + 1)


@pytest.mark.requirement("CKPT-01")
def test_what_the_checkpoint_lacks_is_named(tmp_path: Path) -> None:
    train(tmp_path, 2, {"weights": np.zeros(4)})
    with pytest.raises(training.CannotResume, match=r"has no 'speeds'; it has weights"):
        train(tmp_path, 4, {"weights": np.zeros(4), "speeds": np.zeros(4)})


@pytest.mark.requirement("CKPT-01")
def test_what_the_script_does_not_track_is_named(tmp_path: Path) -> None:
    train(tmp_path, 2, {"weights": np.zeros(4), "speeds": np.zeros(4)})
    with pytest.raises(training.CannotResume, match=r"also has speeds, which this script does not track"):
        train(tmp_path, 4, {"weights": np.zeros(4)})


@pytest.mark.slow
def test_a_changed_shape_is_named(tmp_path: Path) -> None:
    train(tmp_path, 2, {"weights": np.zeros(4)})
    with pytest.raises(
        training.CannotResume, match=r"weights: the checkpoint has shape \[4\].*, the script shape \[5\]"
    ):
        train(tmp_path, 4, {"weights": np.zeros(5)})


@pytest.mark.slow
def test_another_seed_is_refused(tmp_path: Path) -> None:
    train(tmp_path, 2, {"weights": np.zeros(4)}, seed=1)
    with pytest.raises(training.CannotResume, match=r"made with seed 1, this script has seed 2"):
        train(tmp_path, 4, {"weights": np.zeros(4)}, seed=2)


@pytest.mark.requirement("CKPT-04")
def test_a_damaged_newest_checkpoint_is_set_aside_and_the_one_before_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, 4, {"weights": np.zeros(4)})
    path = tmp_path / "step-4" / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    weights = np.zeros(4)
    train(tmp_path, 5, {"weights": weights})
    assert weights.tolist() == [5.0] * 4
    assert (tmp_path / "step-4.bad-1").is_dir()
    words = capsys.readouterr().err
    assert "step-4 is not used (weights.safetensors: the bytes" in words
    assert "resuming after step 2" in words


def test_none_valid_is_an_error_and_never_a_fresh_start(tmp_path: Path) -> None:
    train(tmp_path, 4, {"weights": np.zeros(4)})
    for name in ("step-2", "step-4"):
        (tmp_path / name / "checkpoint.json").write_text("{}")
    with pytest.raises(training.NoValidCheckpoint, match=r"none of the 2 checkpoints in .* proves right"):
        train(tmp_path, 5, {"weights": np.zeros(4)})
    assert not (tmp_path / "step-5").exists()


def test_a_newer_format_is_refused_not_skipped(tmp_path: Path) -> None:
    train(tmp_path, 4, {"weights": np.zeros(4)})
    record = tmp_path / "step-4" / "checkpoint.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "version": 2}))
    with pytest.raises(training.CannotResume, match=r"format version 2; this holdfast reads up to 1"):
        train(tmp_path, 5, {"weights": np.zeros(4)})
    assert (tmp_path / "step-4").is_dir()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda: 0, r"state\.bad cannot be saved: a function"),
        (sys.stdout, r"state\.bad cannot be saved: an? \w+"),
        (np.array(["a"]), r"state\.bad cannot be saved: its elements are str"),
    ],
    ids=["lambda", "file", "strings"],
)
def test_what_cannot_be_saved_is_named_after_the_first_step(tmp_path: Path, value: object, words: str) -> None:
    def attempt() -> None:
        with training.run(tmp_path, every=None) as run:
            run.track({"bad": value, "good": np.zeros(2)})
            for _ in run.steps(5):
                assert run.step == 0

    with pytest.raises(training.CannotSave, match=words):
        attempt()


def test_something_that_cannot_be_restored_is_refused_when_it_is_tracked(tmp_path: Path) -> None:
    with (
        training.run(tmp_path) as run,
        pytest.raises(training.TrainingError, match=r"broken: object .* cannot be restored"),
    ):
        run.track(broken=object())


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "least"},
        {"keep_last": 0},
        {"keep_best": 4},
        {"on_nonfinite": "ignore"},
        {"every": 0},
        {"every": "soon"},
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"(?i)give|write|keep|step"):
        training.run(tmp_path, **options)


def test_a_loss_that_is_nan_keeps_the_last_checkpoint_from_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with training.run(tmp_path, every=1, keep_last=1) as run:
        run.track(weights=np.zeros(2))
        for step in run.steps(6):
            run.log(loss=math.nan if step >= 3 else 1.0)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-3", "step-6"]
    assert "loss was not finite at step" in capsys.readouterr().err


@pytest.mark.slow
def test_a_loss_that_is_nan_ends_the_run_when_that_is_the_policy(tmp_path: Path) -> None:
    def attempt() -> None:
        with training.run(tmp_path, on_nonfinite="stop") as run:
            run.track(weights=np.zeros(2))
            for _ in run.steps(6):
                run.log(loss=math.inf)

    with pytest.raises(training.NonFinite, match=r"loss was not finite"):
        attempt()


@pytest.mark.slow
@pytest.mark.requirement("LIB-02")
def test_each_stage_of_leaving_runs_whatever_the_others_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []

    class Loader:
        def __iter__(self) -> Any:
            return iter(range(100))

        def __len__(self) -> int:
            return 100

    def broken(why: str) -> None:
        order.append(f"broken {why} {(tmp_path / 'step-1').is_dir()}")
        raise OSError("the tracker is not reachable")

    def attempt() -> None:
        with training.run(tmp_path) as run:
            batches = run.batches(Loader())
            run.on_stop(broken)
            run.on_stop(lambda why: order.append(f"second {why}"))
            for _ in run.steps(5):
                next(batches)
                run.stop()

    with pytest.raises(training.Stopped) as caught:
        attempt()
    assert (caught.value.code, caught.value.saved) == (143, True)
    assert order == ["broken user True", "second user"]
    assert "closing failed: on_stop callback" in capsys.readouterr().err


def test_a_stop_after_the_last_step_is_a_finish(tmp_path: Path) -> None:
    with training.run(tmp_path) as run:
        for step in run.steps(3):
            if step == 2:
                run.stop()
    assert (tmp_path / "step-3").is_dir()


@pytest.mark.requirement("CKPT-07")
def test_the_best_ones_are_kept_beside_the_newest(tmp_path: Path) -> None:
    with training.run(tmp_path, every=1, keep_last=1, keep_best=2, metric="score", mode="max") as run:
        for step in run.steps(6):
            run.log(score=[0.1, 0.9, 0.3, 0.8, 0.2, 0.0][step])
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-2", "step-4", "step-6"]


@pytest.mark.requirement("CKPT-06")
def test_a_mirror_takes_over_when_the_directory_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    local, mirror = tmp_path / "local", tmp_path / "mirror"
    train(local, 4, {"weights": np.zeros(4)}, mirror=mirror)
    assert training.latest(mirror) == str(mirror / "step-4")
    for path in sorted(local.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    weights = np.zeros(4)
    train(local, 5, {"weights": weights}, mirror=mirror)
    assert weights.tolist() == [5.0] * 4
    assert f"resuming after step 4 from {mirror}" in capsys.readouterr().err


@pytest.mark.slow
def test_things_tracked_late_are_restored_when_they_are_tracked(tmp_path: Path) -> None:
    train(tmp_path, 2, {"weights": np.zeros(4)})
    with training.run(tmp_path) as run:
        assert run.resume() == 2
        weights = np.zeros(4)
        run.track(weights=weights)
        assert weights.tolist() == [2.0] * 4
        for _ in run.steps(3):
            pass


@pytest.mark.slow
def test_a_save_by_hand_is_durable_when_it_says_so(tmp_path: Path) -> None:
    with training.run(tmp_path, every=None) as run:
        weights = np.zeros(4)
        run.track(weights=weights)
        for step in range(run.begin(), 3):
            weights += 1
            run.beat(step + 1)
            save = run.save()
            weights += 100  # after save() returned: not part of it
            assert save.result().endswith(f"step-{step + 1}")
            weights -= 100
            assert training.load(tmp_path / f"step-{step + 1}")["weights"].tolist() == [step + 1.0] * 4


def test_a_state_that_changed_after_its_save_is_saved_again(tmp_path: Path) -> None:
    weights = np.zeros(4)
    with training.run(tmp_path) as run:
        run.track(weights=weights)
        for _ in run.steps(2):
            pass
        weights += 7
        run.save(wait=True)
    assert training.load(tmp_path / "step-2")["weights"].tolist() == [7.0] * 4


def test_a_script_may_be_done_before_its_last_step(tmp_path: Path) -> None:
    seen = []
    with training.run(tmp_path) as run:
        run.track(weights=np.zeros(4))
        for step in run.steps(100):
            seen.append(step)
            if step == 2:
                run.finish()
                seen.append(-1)  # the body is gone on with
    assert seen == [0, 1, 2, -1]
    assert json.loads((tmp_path / "step-3" / "checkpoint.json").read_text())["complete"]


@pytest.mark.slow
def test_a_directory_that_vanishes_is_not_made_anew_beneath_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "mount"

    def attempt() -> None:
        with training.run(place, every=None) as run:
            run.track(weights=np.zeros(4))
            for step in run.steps(3):
                if step == 0:
                    place.rename(tmp_path / "elsewhere")

    with pytest.raises(training.SaveFailed, match="the run's directory is gone"):
        attempt()
    assert not place.exists()
    assert "the run's directory is gone" in capsys.readouterr().err


@pytest.mark.slow
def test_the_mirror_of_another_training_is_refused(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    train(tmp_path / "one", 4, {"weights": np.zeros(4)}, mirror=mirror)
    with pytest.raises(training.CannotResume, match=r"mirror is the mirror of the training in .*one"):
        train(tmp_path / "two", 4, {"weights": np.zeros(4)}, mirror=mirror)
    (tmp_path / "one").rename(tmp_path / "lost")
    weights = np.zeros(4)
    train(tmp_path / "two", 5, {"weights": weights}, mirror=mirror)
    assert weights.tolist() == [5.0] * 4


def test_the_block_can_be_entered_once(tmp_path: Path) -> None:
    run = training.run(tmp_path)
    with run:
        assert run.step == 0
    with pytest.raises(training.TrainingError, match="entered once"):
        run.__enter__()


def test_a_loop_of_ones_own_must_begin_first(tmp_path: Path) -> None:
    with training.run(tmp_path) as run, pytest.raises(training.TrainingError, match=r"call run\.begin\(\) first"):
        run.beat(1)


def test_a_script_that_is_done_and_breaks_off_loses_nothing(tmp_path: Path) -> None:
    with training.run(tmp_path) as run:
        run.track(weights=np.zeros(4))
        for step in run.steps(100):
            if step == 2:
                run.finish()
                break
    assert (tmp_path / "step-3").is_dir()


def test_a_training_that_ended_itself_is_not_gone_on_with_unless_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def attempt(**options: Any) -> list[int]:
        seen = []
        with training.run(tmp_path, **options) as run:
            for step in run.steps(5):
                seen.append(step)
                if step == 2:
                    run.finish()
        return seen

    assert attempt() == [0, 1, 2]
    assert attempt() == []
    assert "the script ended this training itself after step 3" in capsys.readouterr().err
    assert attempt(extend=True) == [3, 4]


def test_a_loop_that_never_began_is_told_so(tmp_path: Path) -> None:
    with training.run(tmp_path) as run:
        for ask in (run.should_stop, run.should_save):
            with pytest.raises(training.TrainingError, match=r"call run\.begin\(\) first"):
                ask()


def test_a_loop_of_ones_own_that_is_not_finished_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with training.run(tmp_path, every=None) as run:
        for step in range(run.begin(), 3):
            run.beat(step + 1)
    assert "the loop ended at step 3 without run.finish(), so it is not saved" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.requirement("CKPT-14")
@pytest.mark.parametrize("in_place", [True, False])
def test_an_array_that_is_replaced_instead_of_changed_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, in_place: bool
) -> None:
    weights = np.zeros(4)
    with training.run(tmp_path, every=2) as run:
        run.track(weights=weights)
        for _ in run.steps(5):
            if in_place:
                weights += 1
            else:
                weights = weights + 1  # the mistake
    assert ("weights is the same as at step 2" in capsys.readouterr().err) is not in_place


@pytest.mark.requirement("CKPT-14")
def test_a_loader_that_was_begun_too_early_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with training.run(tmp_path) as run:
        run.batches(list(range(10)))
        for _ in run.steps(2):
            pass
    assert "no batch was taken from data in the first step" in capsys.readouterr().err


def test_a_time_limit_may_be_text(tmp_path: Path) -> None:
    assert training.run(tmp_path, time_limit="2h")._settings.time_limit_s == 7200
    with pytest.raises(ValueError, match="is not a time"):
        training.run(tmp_path, time_limit="20")


@pytest.mark.requirement("CKPT-07")
def test_of_checkpoints_with_one_value_the_first_is_the_best(tmp_path: Path) -> None:
    with training.run(tmp_path, every=1, keep_last=1, keep_best=1, metric="score", mode="max") as run:
        run.track(weights=np.zeros(2))
        for step in run.steps(8):
            if step % 3 == 0:
                run.log(score=[0.1, 0.9, 0.3][step // 3])
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-4", "step-8"]


@pytest.mark.slow
def test_a_metric_that_is_never_logged_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with training.run(tmp_path, every=1, keep_best=1, metric="accuracy") as run:
        run.track(weights=np.zeros(2))
        for _ in run.steps(3):
            run.log(acc=0.5)
    assert capsys.readouterr().err.count("'accuracy' was not logged yet") == 1


def test_an_error_while_the_block_ends_leaves_the_run_in_order_all_the_same(tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGTERM)

    def attempt() -> None:
        with training.run(tmp_path, every=None) as run:
            state: dict[str, Any] = {"good": np.zeros(2)}
            run.track(state)
            for step in run.steps(5):
                if step == 1:
                    state["bad"] = lambda: 0
                    run.finish()
                    break

    with pytest.raises(training.CannotSave, match=r"state\.bad"):
        attempt()
    assert signal.getsignal(signal.SIGTERM) is handler
    with training.run(tmp_path) as again:  # the directory is free
        again.track({"good": np.zeros(2)})
        assert again.begin() == 0


@pytest.mark.slow
def test_the_last_save_is_not_waited_for_beyond_the_end(tmp_path: Path) -> None:
    def attempt() -> None:
        with training.run(tmp_path, every=None, time_limit=4) as run:
            run.track(weights=np.zeros(2))
            for step in run.steps(2):
                if step == 1:
                    saver = run._checkpoints.saver
                    assert saver._process is not None
                    os.kill(saver._process.pid, signal.SIGSTOP)
                    pids.append(saver._process.pid)

    pids: list[int] = []
    with pytest.raises(training.SaveFailed, match="the time is up"):
        attempt()
    os.kill(pids[0], signal.SIGKILL)
    os.waitpid(pids[0], 0)


def test_a_mirror_whose_name_cannot_be_written_is_still_locked_by_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.host.files import files
    from holdfast.training.storage.write import mirror as mirroring

    def refuse(path: str, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(files, "commit", refuse)
    said: list[str] = []
    lock = mirroring.claim(str(tmp_path / "mirror"), str(tmp_path / "own"), said.append)
    assert lock is not None
    assert "another training may take the mirror" in said[0]
    with pytest.raises(training.DirectoryBusy):
        mirroring.claim(str(tmp_path / "mirror"), str(tmp_path / "other"), said.append)
    lock.release()


def test_a_mirror_that_was_mounted_after_its_first_use_is_missed_when_it_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.model.results import Destination
    from holdfast.training.storage.write import mirror as mirroring

    own, mirror = tmp_path / "own", tmp_path / "nas"
    own.mkdir()
    for mount, kind in (("/", "ext4"), (str(mirror), "nfs4")):
        monkeypatch.setattr(mirroring, "look_at", lambda to, mount=mount, kind=kind: Destination(to, mount, kind))
        mirroring.make_directory(str(mirror), str(own))
    mirroring._mounts.clear()  # the next training of the same checkpoints
    monkeypatch.setattr(mirroring, "look_at", lambda to: Destination(to, "/", "ext4"))
    with pytest.raises(OSError, match="mount it again"):
        mirroring.make_directory(str(mirror), str(own))


@pytest.mark.parametrize("is_remembered", [False, True])
def test_a_mirror_whose_mount_is_lost_is_not_made_up_on_this_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_remembered: bool
) -> None:
    """Its empty mount point is there, and takes files."""
    from holdfast.model.results import Destination
    from holdfast.training.storage.write import mirror as mirroring

    own, mirror, mount = tmp_path / "own", tmp_path / "nas" / "run-1", Destination("", f"{tmp_path}/nas", "nfs4")
    own.mkdir()
    mirror.parent.mkdir()
    monkeypatch.setattr(mirroring, "look_at", lambda to: Destination(to, mount.mount_point, mount.kind))
    said: list[str] = []
    lock = mirroring.claim(str(mirror), str(own), said.append)
    assert lock is not None
    lock.release()
    shutil.rmtree(mirror)
    if not is_remembered:
        mirroring._mounts.clear()  # the next training of the same checkpoints
    monkeypatch.setattr(mirroring, "look_at", lambda to: Destination(to, "/", "ext4"))
    assert mirroring.claim(str(mirror), str(own), said.append) is None
    assert f"was on a mount that is gone (nfs4 on {tmp_path}/nas)" in said[-1]
    with pytest.raises(OSError, match="mount it again"):
        mirroring.make_directory(str(mirror), str(own))
    assert not mirror.exists()
    mirroring._mounts.clear()
    (own / mirroring.SEEN).write_bytes(b"{")
    with pytest.raises(OSError, match="findmnt -T"):
        mirroring.make_directory(str(mirror), str(own))
    assert not mirror.exists()
