"""The trainer and its writer: torn-safe, exact about what is durable, and neither takes the other one down."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.training.errors import CannotSave, SaveFailed
from holdfast.training.storage import checkpoints
from holdfast.training.storage.checkpoints import Retention
from holdfast.training.storage.write import snapshot, writer
from holdfast.training.storage.write.save import Saver
from tests.training.faults import support
from tests.training.faults.driving import is_gone, start, stop_process
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.training.storage.write.writer import SaveResult
    from tests.training.faults.driving import Trainer

__all__ = ["start"]
pytestmark = pytest.mark.process
SIGNALS = ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGXCPU", "SIGTSTP"]


@pytest.fixture
def heard() -> list[SaveResult]:
    return []


@pytest.fixture
def saver(tmp_path: Path, heard: list[SaveResult]) -> Iterator[Saver]:
    made = Saver(str(tmp_path / "c"), Retention(), report=lambda _save, result: heard.append(result))
    yield made
    if made._process is not None and made._process.poll() is None:
        os.kill(made._process.pid, signal.SIGCONT)
    made.close()


def held(saver: Saver) -> int:
    """Start the writer and hold it still; its process number."""
    saver.prepare(support.state_of(0))
    assert saver._process is not None
    stop_process(saver._process.pid)
    return saver._process.pid


@pytest.mark.requirement("CKPT-17")
def test_a_save_is_durable_when_it_says_so_and_not_before(
    saver: Saver, tmp_path: Path, heard: list[SaveResult]
) -> None:
    pid = held(saver)
    save = saver.save(1, support.state_of(1), {})
    assert not save.done
    assert not (tmp_path / "c" / "step-1").exists()
    with pytest.raises(TimeoutError, match="step 1 is not durable after 0"):
        save.result(timeout=0)
    assert heard == []
    os.kill(pid, signal.SIGCONT)
    assert save.result() == str(tmp_path / "c" / "step-1")
    assert [result.step for result in heard] == [1]
    assert support.newest(tmp_path / "c") == 1


@pytest.mark.requirement("CKPT-17")
def test_everything_may_change_as_soon_as_save_returns(saver: Saver, tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    np: Any = pytest.importorskip("numpy")
    from array import array

    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(300)).sum().backward()
    optimizer.step()
    nested: dict[str, Any] = {"list": [1, {"deep": [2]}], "text": "before", "array": array("d", [1.0] * 10_000)}
    numbers, half = np.arange(100_000.0), torch.ones(1000, dtype=torch.bfloat16)
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "own": [nested, numbers, half]}
    import copy

    expected = copy.deepcopy(states)
    pid = held(saver)
    save = saver.save(1, states, {})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for state in optimizer.state.values():
            for value in state.values():
                value.add_(7)
    optimizer.param_groups[0]["lr"] = 99
    nested["list"][1]["deep"].append(3)
    nested["list"].clear()
    nested.update(text="after", array=None)
    numbers[:] = 0
    half.zero_()
    os.kill(pid, signal.SIGCONT)
    loaded = checkpoints.load_checkpoint(save.result()).states
    for key, value in expected["model"].items():
        assert torch.equal(loaded["model"][key], value), key
    assert loaded["optimizer"]["param_groups"] == expected["optimizer"]["param_groups"]
    for at, state in expected["optimizer"]["state"].items():
        for key, value in state.items():
            assert torch.equal(loaded["optimizer"]["state"][at][key], value), (at, key)
    assert loaded["own"][0] == expected["own"][0]
    assert np.array_equal(loaded["own"][1], expected["own"][1])
    assert torch.equal(loaded["own"][2], expected["own"][2])


def test_a_second_save_waits_for_the_first(saver: Saver, tmp_path: Path, heard: list[SaveResult]) -> None:
    for step in range(1, 6):
        save = saver.save(step, support.state_of(step), {})
    save.result()
    assert [(result.step, result.ok) for result in heard] == [(step, True) for step in range(1, 6)]
    assert support.steps(tmp_path / "c") == [4, 5]
    for step in (4, 5):
        assert support.whose(checkpoints.load_checkpoint(str(tmp_path / "c" / f"step-{step}"))) == {step}


def test_a_state_that_cannot_be_saved_is_refused_and_the_writer_goes_on(saver: Saver, tmp_path: Path) -> None:
    saver.save(1, support.state_of(1), {}).result()
    with pytest.raises(CannotSave, match=r"^model\.hook cannot be saved"):
        saver.save(2, {"model": {"hook": lambda: 0}}, {})
    saver.save(3, support.state_of(3), {}).result()
    assert support.steps(tmp_path / "c") == [1, 3]


# --------------------------------------------------------------------------------------------------- the writer's life


@pytest.mark.requirement("CKPT-17")
def test_a_writer_killed_in_a_save_is_seen_and_the_next_save_works(
    saver: Saver, tmp_path: Path, heard: list[SaveResult]
) -> None:
    saver.save(1, support.state_of(1), {}).result()
    pid = held(saver)
    save = saver.save(2, support.state_of(2), {})
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SaveFailed, match=r"step 2 was not saved: the writer process died \(signal 9\)"):
        save.result()
    assert support.newest(tmp_path / "c") == 1
    assert saver.save(3, support.state_of(3), {}).result() == str(tmp_path / "c" / "step-3")
    assert [result.ok for result in heard] == [True, False, True]


def test_a_writer_killed_while_idle_costs_nothing(saver: Saver, tmp_path: Path, heard: list[SaveResult]) -> None:
    saver.save(1, support.state_of(1), {}).result()
    assert saver._process is not None
    os.kill(saver._process.pid, signal.SIGKILL)
    wait_until(lambda: is_gone(saver._process.pid))  # type: ignore[union-attr]
    saver.save(2, support.state_of(2), {}).result()
    assert [result.ok for result in heard] == [True, True]


def test_polling_sees_the_end_without_waiting(saver: Saver) -> None:
    save = saver.save(1, support.state_of(1), {})
    wait_until(lambda: save.done)
    assert save.outcome is not None
    assert save.outcome.ok


@pytest.mark.parametrize("name", SIGNALS)
def test_the_signals_of_a_group_do_not_end_a_save(name: str, saver: Saver) -> None:
    pid = held(saver)
    save = saver.save(1, support.state_of(1), {})
    os.kill(pid, getattr(signal, name))
    os.kill(pid, signal.SIGCONT)
    save.result()
    os.kill(pid, getattr(signal, name))
    saver.save(2, support.state_of(2), {}).result()
    assert not is_gone(pid)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_while_the_writer_starts_does_not_end_it(name: str, saver: Saver, heard: list[SaveResult]) -> None:
    saver._start_writer()
    assert saver._process is not None
    os.kill(saver._process.pid, getattr(signal, name))
    saver.save(1, support.state_of(1), {}).result()
    assert [result.ok for result in heard] == [True]


def test_the_trainer_hears_its_own_signals_as_before(saver: Saver) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    saver._start_writer()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_where_no_process_can_be_started_the_trainer_writes_by_itself(
    saver: Saver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver.save(1, support.state_of(1), {}).result()
    assert saver._process is not None
    os.kill(saver._process.pid, signal.SIGKILL)
    wait_until(lambda: is_gone(saver._process.pid))  # type: ignore[union-attr]

    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    saver.save(2, support.state_of(2), {}).result()
    assert "Resource temporarily unavailable" in saver.why_inline
    assert support.newest(tmp_path / "c") == 2


def test_where_no_shared_memory_can_be_had_the_trainer_writes_by_itself(
    saver: Saver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    saver.save(2, support.state_of(2), {}).result()
    assert "Too many open files" in saver.why_inline
    assert support.newest(tmp_path / "c") == 2


@pytest.mark.requirement("LIB-13")
def test_a_writer_is_gone_when_the_run_is_over(tmp_path: Path) -> None:
    saver = Saver(str(tmp_path / "c"), Retention())
    saver.save(1, support.state_of(1), {})
    assert saver._process is not None
    pid = saver._process.pid
    saver.close()
    assert is_gone(pid)
    assert support.newest(tmp_path / "c") == 1


# ---------------------------------------------------------------------------------------------------------- the mirror


@pytest.fixture
def mirrored(tmp_path: Path, heard: list[SaveResult]) -> Iterator[Saver]:
    made = Saver(
        str(tmp_path / "c"),
        Retention(),
        mirror=str(tmp_path / "m"),
        report=lambda _save, result: heard.append(result),
    )
    yield made
    made.close(timeout=0.0)


@pytest.mark.requirement("CKPT-06")
def test_the_end_of_a_run_waits_for_the_mirror(mirrored: Saver, tmp_path: Path, heard: list[SaveResult]) -> None:
    mirrored.save(1, support.state_of(1), {})
    mirrored.close()
    assert [(result.mirror, result.ok) for result in heard] == [(False, True), (True, True)]
    assert support.newest(tmp_path / "m") == 1


@pytest.mark.requirement("CKPT-06")
def test_a_writer_that_dies_while_it_copies_is_a_failure_of_the_mirror(
    mirrored: Saver, tmp_path: Path, heard: list[SaveResult]
) -> None:
    save = mirrored.save(1, support.state_of(1), {})
    assert mirrored._process is not None
    pid = mirrored._process.pid
    wait_until((tmp_path / "c" / "step-1").is_dir)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid))

    def answered_for() -> int:
        mirrored.poll()
        return len(heard)

    wait_until(answered_for)
    mirrored.poll()
    # Killed before or after each of its two answers: what was not answered is said to have failed.
    answered = [(result.mirror, result.ok) for result in heard]
    assert answered in ([(False, False)], [(False, True), (True, False)], [(False, True), (True, True)])
    if answered[-1] == (True, False):
        assert "died (signal 9) before its copy was proven" in heard[-1].message
    assert save.done
    assert not mirrored._mirrors_due


@pytest.mark.parametrize("trouble", ["save fails", "falls back to the mirror"])
def test_a_copy_that_will_never_be_made_is_not_waited_for(
    trouble: str, mirrored: Saver, tmp_path: Path, heard: list[SaveResult]
) -> None:
    (tmp_path / "c").write_bytes(b"no directory")
    if trouble == "save fails":
        (tmp_path / "m").write_bytes(b"no directory")
    save = mirrored.save(1, support.state_of(1), {})
    mirrored.wait(None)
    assert save.outcome is not None
    assert save.outcome.ok == (trouble != "save fails")
    assert not mirrored._mirrors_due
    assert [result.mirror for result in heard] == [False]


@pytest.mark.requirement("CKPT-06")
def test_a_mirror_that_is_missing_is_said_and_counted_and_the_run_goes_on(
    start: Callable[..., Trainer], tmp_path: Path
) -> None:
    trainer = start(tmp_path / "c", f"mirror={tmp_path}/mount/m")
    trainer.resumed()
    for step in (1, 2):
        trainer.save()
        assert trainer.saved()["path"].endswith(f"c/step-{step}")
    assert trainer.quit() == 0
    for step in (1, 2):
        assert trainer.said(f"step {step} is durable here, but not on the mirror: {tmp_path}/mount/m: No such file")
        assert trainer.said(f"(failure {step})")
    assert not (tmp_path / "mount").exists()


# --------------------------------------------------------------------------------------------------- the trainer's end


@pytest.mark.requirement("LIB-13")
@pytest.mark.parametrize("forked", [False, True], ids=["alone", "with a forked child"])
def test_an_idle_writer_is_gone_two_seconds_after_its_trainer_was_killed(
    forked: bool, start: Callable[..., Trainer], tmp_path: Path
) -> None:
    trainer = start(tmp_path / "c")
    trainer.resumed()
    pid = trainer.save()
    trainer.saved()
    if forked:
        trainer.fork()
    assert not is_gone(pid)
    trainer.kill()
    # A look each second, and nothing to wait for after it.
    assert writer.TRAINER_LOOK_MS <= 1000
    wait_until(lambda: is_gone(pid), what="the writer is gone")


@pytest.mark.requirement("LIB-13", "CKPT-17")
def test_a_busy_writer_finishes_the_save_of_a_killed_trainer_and_the_next_one_waits_for_it(
    start: Callable[..., Trainer], tmp_path: Path
) -> None:
    directory = tmp_path / "c"
    first = start(directory)
    first.resumed()
    pid = first.save()
    first.saved()
    stop_process(pid)
    first.save()
    first.kill()
    second = start(directory)
    wait_until(lambda: second.said("left behind, to finish its save"), what="the second trainer waits")
    assert support.steps(directory) == [1]
    os.kill(pid, signal.SIGCONT)
    assert second.resumed() == {"resumed": 2, "whose": [2]}
    wait_until(lambda: is_gone(pid))
    assert second.quit() == 0


@pytest.mark.requirement("CKPT-05", "CKPT-17")
def test_a_tree_killed_in_a_save_leaves_the_checkpoint_before_it(start: Callable[..., Trainer], tmp_path: Path) -> None:
    directory = tmp_path / "c"
    first = start(directory)
    first.resumed()
    pid = first.save()
    first.saved()
    stop_process(pid)
    first.save()
    first.process.kill()
    os.kill(pid, signal.SIGKILL)
    first.process.wait()
    second = start(directory)
    assert second.resumed() == {"resumed": 1, "whose": [1]}
    assert support.leftovers(directory) == []
    assert second.quit() == 0


def test_the_writer_imports_nothing_but_this_library() -> None:
    code = writer.command(0, 0)
    assert code[1:3] == ["-I", "-S"]
    names = subprocess.run(
        [
            *code[:4],
            (
                "import sys; sys.path.insert(0, sys.argv[1]); "
                "import holdfast.training.storage.write.writer; print(*sys.modules)"
            ),
            code[5],
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not {"torch", "numpy", "click", "yaml"} & set(names)
    assert "holdfast.training.storage.write.writer" in names


def test_memory_of_a_snapshot_goes_back_when_the_run_is_over(tmp_path: Path) -> None:
    saver = Saver(str(tmp_path / "c"), Retention())
    saver.save(1, support.state_of(1), {})
    assert isinstance(saver._snapshot, snapshot.StateSnapshot)
    saver.close()
    assert saver._snapshot is None
