"""The checkpoints of a run while it runs: begin a save, hear how it went, know the newest durable step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from . import forgotten_state
from .errors import SaveFailed
from .randomness import rng
from .reporting.heartbeat import Heartbeat, write_stderr
from .restore import RestoredStates, is_finite, plain_metrics
from .storage.layout import OWN
from .storage.write.save import Save, Saver, versions
from .tracking import Tracked, TrackedKind

if TYPE_CHECKING:
    from .box.environment import JobContext
    from .cadence import Cadence
    from .ranks.agreement import Agreement
    from .settings import Settings

LAST_CALL_S = 2.0
"""With less than this left a save is waited for no more."""
WAIT_LOOK_S = 1.0
WAITED_S = 1.0
"""So much standing still is worth a word."""


class Checkpointing:
    """Saves what is tracked on one rank, and keeps count.

    Attributes:
        last_durable: Step and path of the newest checkpoint that is known to be durable; None before the first.
        save_seconds: How long the last save took until it was durable, also as an earlier attempt measured it.
        trouble: Why the last save failed; empty when it did not.
    """

    def __init__(
        self,
        settings: Settings,
        context: JobContext,
        cadence: Cadence,
        heart: Heartbeat,
        tracked: Mapping[str, Tracked],
    ) -> None:
        """Nothing is written before `open`."""
        self.last_durable: tuple[int, str] | None = None
        self.save_seconds: float | None = None
        self.trouble = ""
        self.cadence = cadence
        self._settings, self._context, self._heart, self._tracked = settings, context, heart, tracked
        self._saver: Saver | None = None
        self._rank, self._alone = 0, True
        self.time_left: Callable[[], float | None] = lambda: None
        self._finite_before = 0
        self._failures = self._mirror_failures = 0
        self._measured = self._said_slow = False
        self._waited_s = 0.0
        self._samples: dict[str, int] = {}
        self._still: set[str] = set()
        self._said: set[str] = set()
        self._sampled_at = -1

    def open(self, agreement: Agreement, restored: RestoredStates, step: int, lock_fd: int | None) -> None:
        """From here on saves are possible; intervals count from now."""
        settings = self._settings
        self._rank, self._alone = agreement.rank, agreement.world == 1
        self._saver = Saver(
            settings.directory,
            settings.keep,
            token=agreement.token,
            rank=agreement.rank,
            world=agreement.world,
            mirror=settings.mirror,
            asynchronous=settings.asynchronous,
            report=self._on_result,
            lock_fd=lock_fd,
        )
        self.cadence.begin(step, time.monotonic())
        if restored.own is not None:
            self.last_durable = (step, restored.path)
            self.save_seconds = restored.own.get("save_seconds")
            if self.save_seconds is not None:
                self.cadence.note_save(self.save_seconds, 0.0)
            self._heart.note(last_durable_step=step, save_seconds=self.save_seconds)

    @property
    def saver(self) -> Saver:
        """The one that `open` made."""
        assert self._saver is not None
        return self._saver

    @property
    def busy(self) -> bool:
        """Whether a save is under way, as far as was heard."""
        return self._saver is not None and self._saver.busy is not None

    def poll(self) -> None:
        """Hear what there is to hear, without waiting."""
        self.saver.poll()

    def wait(self, timeout: float | None) -> None:
        """Wait at most `timeout` seconds until no save is under way: then `last_durable` is exact."""
        if self._saver is not None:
            self._saver.wait(timeout)

    def prepare(self, own: dict[str, Any]) -> None:
        """See that everything can be saved, and have memory and the writer ready before the first save.

        Raises:
            CannotSave: a value has no plain form.
        """
        self.saver.prepare(self._capture(own))

    def begin(self, own: dict[str, Any], reason: str, *, complete: bool = False) -> Save:
        """Begin the save of the step that `own` names; waits for one that is still under way.

        Raises:
            CannotSave: a value has no plain form.
            SaveFailed: the one before is still under way, and the run must leave before it can end.
        """
        saver = self.saver
        if saver.busy is not None:
            began = time.monotonic()
            self._await_the_one_before(saver)
            self._note_wait(time.monotonic() - began)
        self._heart.check_finite()
        healthy, self._finite_before = self._heart.nonfinite == self._finite_before, self._heart.nonfinite
        # A loss that is logged more seldom than saved stays NaN until a finite one is seen.
        metrics = plain_metrics(self._heart.last)
        healthy = healthy and all(map(is_finite, self._heart.last.values()))
        self._look_for_still(own["step"])
        self.cadence.saving(own["step"], time.monotonic())
        tracked = {
            name: {"replicated": item.replicated, "kind": item.kind.value} for name, item in self._tracked.items()
        }
        record = {
            "epoch": None if own["epoch"] is None else int(own["epoch"]),
            "run_id": self._context.run_id or "",
            "attempt": self._context.attempt,
            "reason": reason,
            "metrics": metrics,
            "healthy": healthy,
            "complete": complete,
            "tracked": tracked,
            "seed": self._settings.seed,
            "versions": versions(),
            "save_seconds": self.save_seconds,
        }
        save = saver.save(own["step"], self._capture(own), record)
        # A loop that hangs after it writes nothing more: what is told is then as new as the checkpoint.
        self._heart.catch_up()
        self._say_how(saver)
        return save

    def _await_the_one_before(self, saver: Saver) -> None:
        """Wait for it; a disk that has stopped answering must not keep a run that is asked to leave (LIB-03)."""
        while saver.busy is not None:
            left = self.time_left()
            if left is not None and left < LAST_CALL_S and self._alone:
                raise SaveFailed(f"no save: that of step {saver.busy.step} is still under way and the time is up")
            saver.wait(WAIT_LOOK_S if left is None else min(WAIT_LOOK_S, max(left - LAST_CALL_S, 0.05)))

    def wait_for(self, save: Save) -> str:
        """Wait until `save` is durable, as long as the run may live; its path.

        Raises:
            SaveFailed: it did not become durable, or the time is up.
        """
        while not save.done:
            left = self.time_left()
            if left is not None and left < LAST_CALL_S:
                raise SaveFailed(f"the checkpoint of step {save.step} is not durable yet and the time is up")
            self.wait(WAIT_LOOK_S if left is None else min(WAIT_LOOK_S, max(left - LAST_CALL_S, 0.05)))
        return save.result()

    def _say_how(self, saver: Saver) -> None:
        """Once for each reason: that the loop writes by itself, and that the best cannot be told."""
        settings = self._settings
        if settings.asynchronous and saver.why_inline and saver.why_inline not in self._said:
            self._said.add(saver.why_inline)
            write_stderr(f"the loop writes its checkpoints by itself and waits for them: {saver.why_inline}")
        keep = settings.keep
        if keep.best and keep.metric not in self._heart.last and self._rank == 0 and "metric" not in self._said:
            self._said.add("metric")
            write_stderr(
                f"{keep.metric!r} was not logged yet, so no checkpoint is the best: run.log({keep.metric}=...)"
            )

    def _look_for_still(self, step: int) -> None:
        """Say once that an array stays as it is: ``w = w + 1`` makes a new one, and not that one is tracked."""
        if self._rank != 0 or step <= self._sampled_at:
            return

        for name, item in self._tracked.items():
            if item.kind is TrackedKind.STATEFUL:
                continue
            digest = forgotten_state.checksum_sample(item.target, name)
            if digest is not None and self._samples.get(name) == digest and name not in self._still:
                self._still.add(name)
                write_stderr(
                    f"{name} is the same as at step {self._sampled_at}: if the script changes it, it makes a new array "
                    f"({name} = {name} + ...); change the tracked one in place ({name} += ...)"
                )
            if digest is not None:
                self._samples[name] = digest
        self._sampled_at = step

    def _note_wait(self, seconds: float) -> None:
        """Say once that the loop stands still because saves are asked for faster than the disk takes them."""
        self._waited_s += seconds
        if self._waited_s > WAITED_S and not self._said_slow and self._rank == 0:
            self._said_slow = True
            took = f"{self.save_seconds or seconds:.1f} s"
            write_stderr(
                f'the loop waits for the save before ({took}): they are asked for too often; every="auto" never waits'
            )

    def close(self, patience: float | None = None) -> None:
        """Wait for what is under way, at most `patience` seconds, and let the writer go."""
        if self._saver is not None:
            self._saver.close(patience=patience)

    def save_now(self, own: dict[str, Any], reason: str, *, timeout: Callable[[], float | None]) -> bool:
        """Save and wait; False when it did not become durable, which was said. `timeout` is asked after the copy.

        A writer that dies is replaced, and the save given to the next one: there may be no later interval.
        """
        for _ in range(2):
            save = self.begin(own, reason)
            try:
                save.result(timeout())
            except SaveFailed:
                if save.outcome is None or save.outcome.errno:
                    return False
            except TimeoutError as error:
                write_stderr(f"{error}: its writer goes on by itself, as long as it lives")
                return False
            else:
                return True
        return False

    def is_durable(self, step: int) -> bool:
        """Whether the state after `step` steps is known to be durable."""
        return self.last_durable is not None and self.last_durable[0] == step

    def _capture(self, own: dict[str, Any]) -> dict[str, Any]:
        mine = (
            self._tracked.items()
            if self._rank == 0
            else [(name, item) for name, item in self._tracked.items() if not item.replicated]
        )
        states = {name: item.capture() for name, item in mine}
        return {**states, OWN: {**own, "save_seconds": self.save_seconds, "random": rng.capture_states()}}

    def _on_result(self, save: Save, result: Any) -> None:  # noqa: ANN401 - writer.SaveResult, which is loaded later
        """Hear how a save, or its copy on the mirror, went."""
        for note in result.notes:
            write_stderr(note)
        if result.mirror:
            self._on_mirrored(result)
        elif result.ok:
            self._on_durable(save, result)
        else:
            self.cadence.note_failure()
            self._failures += 1
            self.trouble = result.message
            self._heart.note(save_failures=self._failures)
            newest = (
                f"step {self.last_durable[0]} is the newest durable one" if self.last_durable else "none is durable"
            )
            write_stderr(f"the checkpoint of step {result.step} was not saved: {result.message}; {newest}")

    def _on_durable(self, save: Save, result: Any) -> None:  # noqa: ANN401 - writer.SaveResult
        seconds = save.paused_s + result.seconds
        self.save_seconds, self.trouble = seconds, ""
        self.last_durable = (result.step, result.path)
        self.cadence.note_save(seconds, save.paused_s)
        self._heart.note(save_seconds=seconds, last_durable_step=result.step, pause_seconds=save.paused_s)
        if not self._measured and self._rank == 0:
            size = f"{result.nbytes / 1e6:,.1f} MB in {seconds:.2f} s, the loop stood still for {save.paused_s:.3f} s"
            write_stderr(f"saved step {result.step} ({size}); {self.cadence.describe()}")
        self._measured = True

    def _on_mirrored(self, result: Any) -> None:  # noqa: ANN401 - writer.SaveResult
        if result.ok:
            self._heart.note(mirrored_step=result.step)
            return
        self._mirror_failures += 1
        self._heart.note(mirror_failures=self._mirror_failures)
        words = f"{result.message} (failure {self._mirror_failures})"
        write_stderr(f"step {result.step} is durable here, but not on the mirror: {words}")
