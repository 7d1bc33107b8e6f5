"""`run()` and `Run`: what a training script holds in its hands. Everything else in this package is behind it.

The life of a run: `__enter__` checks what the supervisor promised, seeds, installs the signal flags and locks the
directory; `resume` finds the newest valid checkpoint and restores what is tracked; between two steps `beat` notes the
step, hears how the last save went, and asks all ranks for what is to be done now; `__exit__` leaves in a fixed order,
each stage guarded, and says by its exit code whether all steps were done.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from . import environment, leaving, restoring, stopping
from .agreement import Action, Wish, join, read_ranks
from .cadence import DEFAULT_INTERRUPTION_S, Cadence, parse_every
from .checkpoints import Retention
from .errors import NonFinite, SaveFailed, Stopped, TrainingError
from .heartbeat import Heartbeat, tell
from .locking import DirectoryLock
from .restoring import OWN
from .saving import Save, Saver, versions
from .stopping import Budget, Deadline, StepClock, StopReason, StopSignals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from .agreement import Agreement, Decision
    from .data import Batches
    from .tracking import Tracked
    from .writer import Result

REQUEST_EVERY_S = 0.2
"""How often the file that asks for a checkpoint is looked for."""
LOCK_RANKS_S = 600.0


def run(
    directory: str | os.PathLike[str] | None = None,
    *,
    every: str | int | None = "auto",
    keep_last: int = 2,
    keep_best: int = 0,
    metric: str = "loss",
    mode: str = "min",
    seed: int | None = None,
    deterministic: bool = False,
    time_limit: float | None = None,
    mirror: str | os.PathLike[str] | None = None,
    on_nonfinite: str = "warn",
    on_save_failure: str = "continue",
    asynchronous: bool = True,
) -> Run:
    """A training run that survives; use it as ``with training.run(...) as run``.

    Args:
        directory: Where checkpoints are; without it ``HOLDFAST_CHECKPOINT_DIR``, else ``checkpoints``.
        every: How often to save: ``"auto"`` (from the measured time of a save), steps (``500``), time (``"10m"``), None.
        keep_last: So many of the newest checkpoints are kept; with 1 the old one goes when the new one is durable.
        keep_best: So many of the best ones are kept too, at most 3.
        metric: The logged value that says which is best.
        mode: ``"min"`` or ``"max"`` of `metric`.
        seed: Seeds python, numpy and torch; a checkpoint that was made with another seed is refused.
        deterministic: Ask torch for deterministic algorithms.
        time_limit: Seconds after which to save and leave; the supervisor's and Slurm's deadlines are known anyway.
        mirror: A second directory on storage that outlives this machine; each checkpoint is copied and proven there.
        on_nonfinite: What a NaN or infinite logged value does: ``"warn"``, ``"stop"`` (ends the run with an error).
        on_save_failure: What a save that failed does: ``"continue"`` or ``"stop"`` (leave with 143).
        asynchronous: Save in a process of its own; False: the loop waits until a save is durable.

    Raises:
        ValueError: an argument makes no sense.
    """
    if mode not in ("min", "max"):
        raise ValueError(f'mode={mode!r}: give "min" or "max"')
    if not 0 <= keep_best <= 3 or keep_last < 1:
        raise ValueError(f"keep_last={keep_last}, keep_best={keep_best}: keep at least 1 newest, and 0 to 3 best")
    for name, value, allowed in (
        ("on_nonfinite", on_nonfinite, ("warn", "stop")),
        ("on_save_failure", on_save_failure, ("continue", "stop")),
    ):
        if value not in allowed:
            raise ValueError(f"{name}={value!r}: give one of {', '.join(allowed)}")
    promises = environment.read_promises(os.environ)
    where = os.fspath(directory) if directory is not None else promises.checkpoint_dir or "checkpoints"
    mirrored = os.fspath(mirror) if mirror is not None else promises.mirror
    return Run(
        os.path.abspath(where),
        promises,
        cadence=Cadence(
            parse_every(promises.every if promises.every is not None else every),
            interruption_s=promises.interruption_s or DEFAULT_INTERRUPTION_S,
        ),
        keep=Retention(promises.keep_last or keep_last, keep_best, metric, mode),
        seed=seed,
        deterministic=deterministic,
        time_limit=time_limit,
        mirror=os.path.abspath(mirrored) if mirrored else None,
        stop_on=frozenset(
            name for name, value in (("nonfinite", on_nonfinite), ("save_failed", on_save_failure)) if value == "stop"
        ),
        asynchronous=asynchronous,
    )


class Run:
    """A running training; made by `run`.

    Attributes:
        step: Complete steps so far.
        epoch: The epoch, 0-based, when `batches` are followed or the script sets it; else None.
        state: A dictionary of plain values (and arrays) of the script's own, saved and restored with everything else.
        last_durable: Step and path of the newest checkpoint that is known to be durable; None before the first.
        rank, world: This process among those that train together.
    """

    def __init__(
        self,
        directory: str,
        promises: environment.Promises,
        *,
        cadence: Cadence,
        keep: Retention,
        seed: int | None,
        deterministic: bool,
        time_limit: float | None,
        mirror: str | None,
        stop_on: frozenset[str],
        asynchronous: bool,
    ) -> None:
        """Nothing happens before the ``with`` block is entered."""
        self.directory, self.promises, self.seed = directory, promises, seed
        self.step = 0
        self.epoch: int | None = None
        self.state: dict[str, Any] = {}
        self.last_durable: tuple[int, str] | None = None
        self.rank, self.world = 0, 1
        self._cadence, self._keep, self._mirror = cadence, keep, mirror
        self._deterministic, self._time_limit = deterministic, time_limit
        self._stop_on, self._asynchronous = stop_on, asynchronous
        self._tracked: dict[str, Tracked] = {}
        self._batches: Batches | None = None
        self._on_stop: list[Callable[[str], object]] = []
        self._signals = StopSignals()
        self._clock = StepClock()
        self._deadline: Deadline | None = None
        self._stop: StopReason | None = None
        self._decision: Decision | None = None
        self._acted = 0
        self._agreement: Agreement | None = None
        self._lock: DirectoryLock | None = None
        self._saver: Saver | None = None
        self._heart = Heartbeat(None, None)
        self._restored: restoring.Restored | None = None
        self._last_beat = 0.0
        self._prepared = False
        self._looked_at = 0.0
        self._save_seconds: float | None = None
        self._nonfinite_seen = 0
        self._mirror_failures = 0
        self._saved_nonfinite = 0
        self._failures = 0
        self._step_s = 0.0
        self._deadline_look = 0.0
        self._local_world, self._key = 1, ""
        self._finished = False
        self._entered = False

    # ------------------------------------------------------------------------------------------------ the with block

    def __enter__(self) -> Run:  # noqa: PYI034 - one class
        """Check, seed, install the signal flags.

        Raises:
            DevicesMissing: cards were promised and are not usable; leaves with 78.
        """
        if self._entered:
            raise TrainingError("a run can be entered once", "make another one with training.run(...)")
        self._entered = True
        for problem in self.promises.problems:
            tell(problem)
        self.rank, self.world, self._local_world, self._key = read_ranks(os.environ)
        applied = environment.apply(self.promises, seed=self.seed, rank=self.rank, deterministic=self._deterministic)
        for note in applied.notes:
            tell(note)
        self._deadline, problems = stopping.earliest_deadline(
            os.environ, time_limit_s=self._time_limit, now_epoch=time.time(), now_monotonic=time.monotonic()
        )
        for problem in problems:
            tell(problem)
        mine = self.rank == 0
        self._heart = Heartbeat(self.promises.heartbeat if mine else None, self.promises.metrics if mine else None)
        if self.promises.stacks is not None:
            from . import stacks

            stacks.install(environment.of_rank(self.promises.stacks, self.rank))
        self._signals.install()
        self._last_beat = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave: the last save, the loaders, the callbacks, the process group, the records, in this order.

        Raises:
            Stopped: the block ended because it was asked to, by the script's own loop.
        """
        stopped = error if isinstance(error, Stopped) else None
        if error is None and self._decision is not None and self._decision.action is Action.STOP:
            stopped = self._save_and_stop()
        leaving.leave(self, error, stopped)
        if stopped is not None and stopped is not error:
            raise stopped

    # ------------------------------------------------------------------------------------------------------- tracking

    def track(self, *unnamed: Any, replicated: bool | None = None, **named: Any) -> None:  # noqa: ANN401
        """Have things saved and restored: modules, optimizers, schedulers, scalers, arrays, generators, dictionaries.

        Args:
            unnamed: One dictionary, list or array, tracked as ``state``.
            replicated: Every rank has the same (as with DistributedDataParallel): rank 0 saves it, all load it. None:
                found out for a DistributedDataParallel module, else each rank saves its own.
            named: What to track, by the name that its file gets. Plain values (numbers, strings) become entries of
                `Run.state`. A data loader is followed as by `batches`.

        Raises:
            TrainingError: something cannot be restored in place, or the name is taken.
        """
        from . import tracking

        if len(unnamed) > 1:
            raise TrainingError(f"track() got {len(unnamed)} things without a name", "name them: track(model=model)")
        for name, target in [*(("state", item) for item in unnamed), *named.items()]:
            if name in self._tracked or name == OWN:
                raise TrainingError(f"{name!r} is tracked already", "give it another name")
            if target is None:
                continue
            if isinstance(target, (bool, int, float, str)):
                self.state.setdefault(name, target)
            elif restoring.is_loader(target):
                self.batches(target, name=name)
            else:
                self._add(tracking.follow(name, target, replicated))

    def _add(self, tracked: Tracked) -> None:
        self._tracked[tracked.name] = tracked
        if self._restored is not None:
            self._restored.restore(tracked)

    def batches(self, loader: Any = None, *, name: str = "data", **options: Any) -> Batches:  # noqa: ANN401
        """Batches of `loader` without end, epoch after epoch; after a resume they go on where they were.

        Args:
            loader: A torch DataLoader, anything with state_dict() and iteration, a sequence, a function of the epoch.
                None: the one that is tracked already.
            name: The name under which its position is saved.
            options: For `data.follow`.
        """
        from . import data, tracking

        if loader is None:
            if self._batches is None:
                raise TrainingError("there is no loader yet", "give one: run.batches(loader)")
            return self._batches
        known = self._tracked.get(name)
        if known is not None and getattr(known.target, "loader", None) is loader:
            assert isinstance(known.target, data.Batches)
            return known.target
        followed = data.follow(loader, name=name, **options)
        self._add(tracking.Tracked(name, followed, "stateful"))
        if self._batches is None:
            self._batches = followed
        return followed

    # ------------------------------------------------------------------------------------------------------- the loop

    def resume(self) -> int:
        """Restore everything that is tracked from the newest valid checkpoint; the number of complete steps, else 0.

        Raises:
            CannotResume: there are checkpoints and none can be continued; never a silent start from scratch.
            DirectoryBusy: another run writes into the directory.
        """
        if self._restored is not None:
            return self.step
        if not self._entered:
            raise TrainingError("resume() outside of the run's block", "use it as: with training.run(...) as run")
        if self.rank == 0:
            os.makedirs(self.directory, exist_ok=True)
            self._lock = DirectoryLock(self.directory, tell)
        self._agreement = join(
            rank=self.rank,
            world=self.world,
            local_world=self._local_world,
            directory=self.directory,
            key=self._key,
            timeout_s=LOCK_RANKS_S,
        )
        self._restored = restoring.find(self.directory, self._mirror, self._agreement, seed=self.seed, say=tell)
        for tracked in self._tracked.values():
            self._restored.restore(tracked)
        self._take_own(self._restored.own)
        self._saver = Saver(
            self.directory,
            self._keep,
            token=self._agreement.token,
            rank=self.rank,
            world=self.world,
            mirror=self._mirror,
            asynchronous=self._asynchronous,
            report=self._on_result,
            lock_fd=self._lock.fd if self._lock is not None else None,
        )
        now = time.monotonic()
        self._cadence.begin(self.step, now)
        self._last_beat = now
        self._heart.step(self.step, self.epoch)
        self._heart.phase("train")
        return self.step

    def _take_own(self, own: dict[str, Any] | None) -> None:
        if own is None:
            return
        self.step, self.epoch = int(own["step"]), own["epoch"]
        self.state.update(own["state"])
        assert self._restored is not None
        self.last_durable = (self.step, self._restored.path)
        self._save_seconds = own.get("save_seconds")
        if self._save_seconds is not None:
            self._cadence.note_save(self._save_seconds, 0.0)
        self._heart.note(last_durable_step=self.step, save_seconds=self._save_seconds)

    def steps(self, total: int | None = None) -> Iterator[int]:
        """Count from the first step that is not complete to `total` (None: without end), for the body of the loop.

        Between two steps everything happens by itself. After the last one the state is saved.

        Raises:
            Stopped: the run was asked to leave; everything is saved, and the block's end leaves with 143.
            CannotSave: something that is tracked has no plain form (after the first step at the latest).
        """
        self.resume()
        assert self._restored is not None
        self._restored.check_all_taken(self._tracked)
        self._restored.restore_random()
        if total is not None and self.step >= total:
            tell(f"all {total} steps are done already (step {self.step} in {self.directory})")
        self._last_beat = time.monotonic()
        while total is None or self.step < total:
            yield self.step
            self.beat(self.step + 1)
            if self._decision is not None and total != self.step:
                self._act()
        self._finish(total)

    def _finish(self, total: int | None) -> None:
        """All steps are done: the state after the last one is saved, and it says that it is complete."""
        self._finished = True
        assert self._agreement is not None
        self._agreement.finish(self.step)
        if total is not None and (self.last_durable is None or self.last_durable[0] != self.step):
            self._save_now("finished")

    def beat(self, step: int) -> None:
        """Say that `step` steps are complete: heartbeat, news of the last save, and what all ranks do now.

        `steps` calls it; a script with a loop of its own does, once after each step, and then asks `should_stop` and
        `should_save`.
        """
        now = time.monotonic()
        if step < self.step:
            tell(f"the step went back from {self.step} to {step}: was the resumed step forgotten?")
        took = now - self._last_beat
        self._clock.add(took)
        # A mean that forgets: the median would cost a sort in each step.
        self._step_s = took if self._step_s == 0.0 else self._step_s + 0.1 * (took - self._step_s)
        self._last_beat = now
        self.step = step
        if self._batches is not None:
            self.epoch = self._batches.epoch
        self._heart.step(step, self.epoch)
        saver, agreement = self._saver, self._agreement
        if saver is None or agreement is None:
            raise TrainingError("beat() before resume()", "call run.resume() before the loop, or use run.steps()")
        if saver.busy is not None or self._mirror is not None:
            saver.poll()
        if not self._prepared:
            self._prepared = True
            saver.prepare(self._capture())
        if self._heart.nonfinite != self._nonfinite_seen:
            self._on_nonfinite()
        decision = agreement.arrive(step, self._wish(now))
        if decision is not None and self._decision is None:
            self._decision = decision

    def _wish(self, now: float) -> Wish | None:
        """What this rank would have all ranks do now; others than rank 0 only ever ask to stop."""
        if self._stop is None:
            self._stop = self._look_for_stop(now)
        if self._stop is not None:
            return Wish(Action.STOP, f"{self._stop.why}: {self._stop.detail}"[:100])
        if self.rank != 0:
            return None
        if now - self._looked_at >= REQUEST_EVERY_S:
            self._looked_at = now
            asked = leaving.take_request(self.promises.checkpoint_request)
            if asked is not None:
                return Wish(Action.SAVE, asked)
        busy = self._saver is not None and self._saver.busy is not None
        if not busy and self._cadence.due(self.step, now, self._step_s):
            return Wish(Action.SAVE, "interval")
        return None

    def _look_for_stop(self, now: float) -> StopReason | None:
        if self._signals.flag:
            return leaving.name_signal(self._signals.flag)
        if self._deadline is not None and now > self._deadline_look:
            p99 = self._clock.p99()
            self._deadline_look = now + min(1.0, p99)
            if Budget.must_stop(now, self._deadline, p99, self._save_seconds or 0.0):
                return StopReason("deadline", self._deadline.source)
        return None

    # -------------------------------------------------------------------------------------------------- stop and save

    @property
    def stop_requested(self) -> bool:
        """Whether this rank knows of a reason to stop: a look at a flag, for evaluation loops that may be cut short."""
        return self._stop is not None or self._signals.flag != 0

    def should_stop(self) -> bool:
        """Whether to leave now: True on the same step in all ranks; then save and leave the ``with`` block."""
        return self._decision is not None and self._decision.action is Action.STOP

    def should_save(self) -> bool:
        """Whether to call `save` now: on the same step in all ranks."""
        return self._decision is not None and self._decision.action is Action.SAVE

    def stop(self, why: str = "user") -> None:
        """Ask to stop at the next step boundary, on all ranks, as a signal would."""
        if self._stop is None:
            self._stop = StopReason("user", why)

    def save(self, step: int | None = None, *, wait: bool = False) -> Save:
        """Save now; when it returns, everything may be changed again. `wait`: until it is durable.

        Args:
            step: Complete steps, when the script counts itself; else what the last `beat` said.
            wait: Whether to return only when it is durable.

        Raises:
            CannotSave: something that is tracked has no plain form.
            SaveFailed: with `wait`, it did not become durable.
        """
        if self._saver is None:
            self.resume()
        if step is not None:
            self.step = step
        if self._decision is not None and self._decision.action is Action.SAVE:
            self._decision = None
        save = self._begin_save("user")
        if wait:
            save.result()
        return save

    def _act(self) -> None:
        """Do what was decided for this step boundary."""
        decision, self._decision = self._decision, None
        assert decision is not None
        if decision.action is Action.SAVE:
            self._begin_save(decision.reason)
            return
        self._decision = decision
        raise self._save_and_stop()

    def _begin_save(self, reason: str) -> Save:
        assert self._saver is not None
        saver = self._saver
        if saver.busy is not None:
            saver.wait(None)
        self._heart.check_finite()
        fresh = self._heart.nonfinite - self._saved_nonfinite
        self._saved_nonfinite = self._heart.nonfinite
        now = time.monotonic()
        self._cadence.saving(self.step, now)
        record = {
            "epoch": self.epoch,
            "run_id": self.promises.run_id or "",
            "attempt": self.promises.attempt,
            "reason": reason,
            "metrics": restoring.plain_metrics(self._heart.last),
            "healthy": fresh == 0,
            "complete": self._finished,
            "tracked": {
                name: {"replicated": item.replicated, "kind": item.kind} for name, item in self._tracked.items()
            },
            "seed": self.seed,
            "versions": versions(),
            "save_seconds": self._save_seconds,
        }
        save = saver.save(self.step, self._capture(), record)
        # What the loop stood still for a save is no step's time.
        self._last_beat += save.paused_s
        return save

    def _capture(self) -> dict[str, Any]:
        from . import rng

        states = {name: item.capture() for name, item in self._tracked.items() if self.rank == 0 or not item.replicated}
        own = {"step": self.step, "epoch": self.epoch, "state": self.state, "save_seconds": self._save_seconds}
        return {**states, OWN: {**own, "random": rng.capture()}}

    def _save_now(self, reason: str) -> bool:
        """Save and wait; False when it did not become durable, which was said."""
        try:
            self._begin_save(reason).result()
        except SaveFailed:
            return False
        return True

    def _on_result(self, save: Save, result: Result) -> None:
        """Hear how a save, or its copy on the mirror, went."""
        for note in result.notes:
            tell(note)
        if result.mirror:
            self._on_mirrored(result)
            return
        if result.ok:
            seconds = save.paused_s + result.seconds
            first, self._save_seconds = self._save_seconds is None, seconds
            self.last_durable = (result.step, result.path)
            self._cadence.note_save(seconds, save.paused_s)
            self._heart.note(save_seconds=seconds, last_durable_step=result.step, pause_seconds=save.paused_s)
            if first and self.rank == 0:
                tell(
                    f"saved step {result.step} ({result.nbytes / 1e6:,.1f} MB in {seconds:.2f} s); {self._cadence.describe()}"
                )
            return
        self._cadence.note_failure()
        self._failures += 1
        self._heart.note(save_failures=self._failures)
        kept = f"step {self.last_durable[0]} is the newest durable one" if self.last_durable else "none is durable yet"
        tell(f"the checkpoint of step {result.step} was not saved: {result.message}; {kept}")
        if "save_failed" in self._stop_on and self._stop is None:
            self._stop = StopReason("save_failed", result.message)

    def _on_mirrored(self, result: Result) -> None:
        if result.ok:
            self._heart.note(mirrored_step=result.step)
            return
        self._mirror_failures += 1
        self._heart.note(mirror_failures=self._mirror_failures)
        tell(
            f"step {result.step} is durable here, but not on the mirror: {result.message} (failure {self._mirror_failures})"
        )

    def _on_nonfinite(self) -> None:
        first = self._heart.last_nonfinite if self._nonfinite_seen else self._heart.first_nonfinite
        announced, self._nonfinite_seen = self._nonfinite_seen > 0, self._heart.nonfinite
        assert first is not None
        words = f"{first.name} was not finite at step {first.step}"
        if "nonfinite" in self._stop_on:
            kept = f"{self.last_durable[1]}" if self.last_durable else "none"
            raise NonFinite(
                words, f"the newest checkpoint is {kept}; lower the learning rate or look at the data there"
            )
        if not announced:
            tell(f"{words}; the newest checkpoint from before is kept")

    def _save_and_stop(self) -> Stopped:
        """The last save before leaving, if it fits; what is raised then."""
        reason = self._stop or leaving.parse_reason(self._decision.reason if self._decision else "")
        self._stop = reason
        self._heart.phase("stopping")
        saved = leaving.flush(self, reason)
        self._finished = False
        return Stopped(reason.why, self.step, saved)

    # ------------------------------------------------------------------------------------------------ the other pieces

    def log(self, **values: object) -> None:
        """Log values of this step (loss, learning rate): into heartbeat and metrics, about once a second."""
        self._heart.log(values)

    @contextlib.contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Say that the script does something else than steps (``eval``): shown, and not counted as a slow step."""
        began = time.monotonic()
        self._heart.phase(name)
        try:
            yield
        finally:
            self._heart.phase("train")
            self._last_beat += time.monotonic() - began

    def on_stop(self, call: Callable[[str], object]) -> Callable[[str], object]:
        """Have `call(why)` called after the last save when the run is asked to leave: finish trackers, tell people."""
        self._on_stop.append(call)
        return call
