"""A writer that dies during the last save takes nothing with it: the save is given to another one."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import training

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.training.storage.write.save import Saver

np = pytest.importorskip("numpy")

pytestmark = [pytest.mark.process, pytest.mark.requirement("CKPT-17")]


def kill_the_writer_of_the_next_save(saver: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer is stopped before it gets the job, so that it certainly has not done it when it dies."""
    begin = saver.save

    def kill(*arguments: Any, **options: Any) -> training.Save:
        monkeypatch.setattr(saver, "save", begin)
        saver._start_writer()
        assert saver._process is not None
        os.kill(saver._process.pid, signal.SIGSTOP)
        save = begin(*arguments, **options)
        os.kill(saver._process.pid, signal.SIGKILL)
        return save

    monkeypatch.setattr(saver, "save", kill)


@pytest.mark.slow
def test_the_last_save_survives_the_death_of_its_writer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempt() -> None:
        with training.run(tmp_path, every=None) as run:
            run.track(weights=np.zeros(100))
            for step in run.steps(3):
                if step == 1:
                    kill_the_writer_of_the_next_save(run._checkpoints.saver, monkeypatch)
                    run.stop()

    with pytest.raises(training.Stopped) as caught:
        attempt()
    assert (caught.value.step, caught.value.saved) == (2, True)
    assert training.latest(tmp_path) == str(tmp_path / "step-2")
    assert "the writer process died (signal 9)" in capsys.readouterr().err
