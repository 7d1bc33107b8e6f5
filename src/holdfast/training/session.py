"""`run()` and `Run`: what a training script holds in its hands. Everything else in this package is behind it.

The life of a run: entering the block checks what the supervisor promised, seeds, installs the signal flags; `resume`
locks the directory, finds the newest valid checkpoint and restores what is tracked; between two steps `beat` notes the
step, hears how the last save went, and asks all ranks for what is to be done now; leaving the block closes everything
in a fixed order and says by the exit code whether all steps were done.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from . import leaving, oversights, restoring
from .box import environment
from .cadence import DEFAULT_INTERRUPTION_S, Cadence
from .checkpointing import Checkpointing
from .errors import NonFinite, SaveFailed, Stopped, TrainingError
from .ranks.agreement import Action, AgreementLost, join, read_ranks
from .ranks.files import find_directory
from .reporting.heartbeat import Heartbeat, tell
from .restoring import OWN
from .settings import (
    Settings,
    choose_directory,
    choose_every,
    choose_mirror,
    choose_retention,
    choose_stops,
    choose_time_limit,
)
from .stopping.budget import Budget
from .stopping.watch import Watch, parse_reason
from .storage import layout
from .storage.locking import DirectoryLock
from .storage.saving import Save
from .storage.writing import make_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from .data.batches import Batches
    from .ranks.agreement import Agreement, Decision
    from .tracking import Tracked

JOIN_S = 600.0
"""How long the ranks wait for each other at the start: imports on a shared file system take minutes."""
FLUSH = "flush"
FLUSH_WAIT_S = 60.0
LAST_S = 0.5
"""What leaving itself takes, after the last wait for the writer."""


def run(  # noqa: PLR0913 - each is a setting that a script may want, all by name
    directory: str | os.PathLike[str] | None = None,
    *,
    every: str | int | None = "auto",
    keep_last: int = 2,
    keep_best: int = 0,
    metric: str = "loss",
    mode: str = "min",
    seed: int | None = None,
    deterministic: bool = False,
    time_limit: float | str | None = None,
    mirror: str | os.PathLike[str] | None = None,
    on_nonfinite: str = "warn",
    on_save_failure: str = "continue",
    asynchronous: bool = True,
    extend: bool = False,
) -> Run:
    """A training run that survives; use it as ``with training.run(...) as run``.

    Args:
        directory: Where checkpoints are; without it ``HOLDFAST_CHECKPOINT_DIR``, else ``checkpoints``.
        every: How often to save: ``"auto"`` (from the measured time of a save), steps (``500``), time (``"10m"``),
            None (only at the end and when asked).
        keep_last: So many of the newest checkpoints are kept; with 1 the old one goes when the new one is durable.
        keep_best: So many of the best ones are kept too, at most 3.
        metric: The logged value that says which is best.
        mode: ``"min"`` or ``"max"`` of `metric`.
        seed: Seeds python, numpy and torch; a checkpoint that was made with another seed is refused.
        deterministic: Ask torch for deterministic algorithms.
        time_limit: After so many seconds (or ``"2h"``) to save and leave; the supervisor's and Slurm's deadlines are
            known anyway.
        mirror: A second directory on storage that outlives this machine; each checkpoint is copied and proven there.
        on_nonfinite: What a NaN or infinite logged value does: ``"warn"``, or ``"stop"``: ends the run with an error.
        on_save_failure: What a save that failed does: ``"continue"``, or ``"stop"``: leave with 143.
        asynchronous: Save in a process of its own; False: the loop waits until a save is durable.
        extend: Go on with a training that ended itself early (`Run.finish` in the body of its loop).

    Raises:
        ValueError: an argument makes no sense.
    """
    promises = environment.read_promises(os.environ)
    where = choose_directory(directory, promises)
    settings = Settings(
        directory=where,
        every=choose_every(every, promises),
        keep=choose_retention(promises, keep_last, keep_best, metric, mode),
        seed=seed,
        deterministic=deterministic,
        time_limit_s=choose_time_limit(time_limit),
        mirror=choose_mirror(mirror, promises, where),
        stop_on=choose_stops(on_nonfinite, on_save_failure),
        asynchronous=asynchronous,
        extend=extend,
    )
    return Run(settings, promises)


class Run:
    """A running training; made by `run`.

    Attributes:
        directory: Where its checkpoints are.
        step: Complete steps so far.
        epoch: The epoch, 0-based, when `batches` are followed or the script sets it; else None.
        state: A dictionary of plain values (and arrays) of the script's own, saved and restored with everything else.
        rank, world: This process among those that train together.
    """

    def __init__(self, settings: Settings, promises: environment.Promises) -> None:
        """Nothing happens before the ``with`` block is entered."""
        self.directory = settings.directory
        self.step = 0
        self.epoch: int | None = None
        self.state: dict[str, Any] = {}
        self.rank, self.world, self._local_world, self._key = read_ranks(os.environ)
        self._settings, self._promises = settings, promises
        self._tracked: dict[str, Tracked] = {}
        self._batches: Batches | None = None
        self._on_stop: list[Callable[[str], object]] = []
        self._decision: Decision | None = None
        self._agreement: Agreement | None = None
        self._lock: DirectoryLock | None = None
        self._mirror_lock: DirectoryLock | None = None
        self._restored: restoring.Restored | None = None
        self._prepared = self._finished = self._entered = self._begun = self._ending = self._left = False
        self._in_step = False  # between two boundaries of `steps`
        self._later: Save | None = None
        self._pid = os.getpid()
        self._nonfinite_seen = 0
        self._rates: tuple[dict[str, list[float]], dict[str, list[float]]] = ({}, {})
        self._watch = Watch(promises.checkpoint_request, settings.time_limit_s, tell)
        speaks = self.rank == 0
        self._heart = Heartbeat(promises.heartbeat if speaks else None, promises.metrics if speaks else None)
        cadence = Cadence(settings.every, interruption_s=promises.interruption_s or DEFAULT_INTERRUPTION_S)
        self._checkpoints = Checkpointing(settings, promises, cadence, self._heart, self._tracked)
        self._checkpoints.time_left = self._watch.time_left

    @property
    def last_durable(self) -> tuple[int, str] | None:
        """Step and path of the newest checkpoint that is known to be durable; None before the first."""
        return self._checkpoints.last_durable

    # ------------------------------------------------------------------------------------------------ the with block

    def __enter__(self) -> Run:  # noqa: PYI034 - one class
        """Check, seed, install the signal flags.

        Raises:
            DevicesMissing: cards were promised and are not usable; leaves with 78.
        """
        if self._entered:
            raise TrainingError("a run can be entered once", "make another one with training.run(...)")
        processes = sys.modules.get("multiprocessing.process")
        if processes is not None and getattr(processes.current_process(), "_inheriting", False):
            # spawn imports the script into each child; it must not touch what belongs to the parent.
            raise TrainingError(
                "the script is being imported again, by a process that it has started (a loader with spawned workers?)",
                'put what trains under: if __name__ == "__main__":',
            )
        self._entered, self._pid = True, os.getpid()
        promises, settings = self._promises, self._settings
        environment.hold_standard_streams()
        for problem in promises.problems:
            tell(problem)
        applied = environment.apply(promises, seed=settings.seed, rank=self.rank, deterministic=settings.deterministic)
        for note in applied.notes:
            tell(note)
        if promises.stacks is not None:
            from .reporting import stacks

            stacks.install(environment.of_rank(promises.stacks, self.rank))
        if self.rank == 0:
            leaving.forget_record(promises.stop_record)
        self._watch.signals.install()
        if not self._watch.signals.installed:
            tell("not in the main thread: signals do not stop this run, and its exit code is for the script to set")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave: the last save, the loaders, the callbacks, the process group, the records, in this order.

        Raises:
            Stopped: the script's own loop ended because `should_stop` said so.
        """
        if os.getpid() != self._pid:
            return  # a forked child ends here: everything is its parent's
        try:
            if error is None:
                self._end_in_peace()
        except BaseException as problem:
            # Whatever the last save or the last look found: the run is left in order all the same.
            error = problem
            raise
        finally:
            self._leave(error)

    def _end_in_peace(self) -> None:
        """The block ended without an error: what is still to be done or to be said.

        Raises:
            Stopped: the loop ended because `should_stop` said so.
        """
        if self._ending and self._in_step:
            # "run.finish(); break": the body is done with, and so is its step.
            self.beat(self.step + 1)
            self.finish()
        if self._in_step and not self._finished:
            self._checkpoints.wait(self._patience())
            newest = f"step {self.last_durable[0]}" if self.last_durable else "none"
            tell(f"the loop was left inside of step {self.step}, which is not saved; the newest checkpoint is {newest}")
        elif self._begun and not self._finished:
            self._say_unfinished()
        if self._agreement is not None and self.should_stop():
            raise self._save_and_stop()

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
                from .data.takeover import take_over

                take_over(target, self.batches(target, name=name), lambda: self._begun)
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
        from . import tracking
        from .data import batches as data

        if loader is None:
            if self._batches is None:
                raise TrainingError("there is no loader yet", "give one: run.batches(loader)")
            return self._batches
        known = self._tracked.get(name)
        if known is not None and getattr(known.target, "loader", None) is loader:
            assert isinstance(known.target, data.Batches)
            return known.target
        followed = data.follow(loader, name=name, **options)
        self._add(tracking.Tracked(name, followed, tracking.Kind.STATEFUL))
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
        if not self._entered:
            raise TrainingError("resume() outside of the run's block", "use it as: with training.run(...) as run")
        self._check_mine()
        if self._restored is not None:
            return self.step
        if self.rank == 0:
            self._lock = self._take_directory()
            if self._settings.mirror is not None:
                from .storage.mirroring import claim

                self._mirror_lock = claim(self._settings.mirror, self.directory, tell)
        self._agreement = join(
            rank=self.rank,
            world=self.world,
            local_world=self._local_world,
            directory=self.directory if self.world == 1 else find_directory(self.directory),
            key=self._key,
            timeout_s=JOIN_S,
        )
        settings = self._settings
        restored = restoring.find(self.directory, settings.mirror, self._agreement, seed=settings.seed, say=tell)
        self._restored = restored
        built = oversights.read_rates(self._tracked)
        for tracked in self._tracked.values():
            restored.restore(tracked)
        self._rates = (built, oversights.read_rates(self._tracked))
        if restored.own is not None:
            self.step, self.epoch = int(restored.own["step"]), restored.own["epoch"]
            self.state.update(restored.own["state"])
        self._checkpoints.open(self._agreement, restored, self.step, self._lock.fd if self._lock else None)
        self._heart.step(self.step, self.epoch)
        self._heart.phase("train")
        self._watch.start()
        return self.step

    def _take_directory(self) -> DirectoryLock:
        try:
            make_directory(self.directory)
            return DirectoryLock(self.directory, tell)
        except OSError as error:
            at = f" (at {error.filename})" if error.filename not in (None, self.directory) else ""
            raise TrainingError(
                f"checkpoints cannot be saved in {self.directory}: {error.strerror or error}{at}",
                "give a directory that this account can make and write",
            ) from error

    def steps(self, total: int | None = None) -> Iterator[int]:
        """Count from the first step that is not complete to `total` (None: without end), for the body of the loop.

        Between two steps everything happens by itself. After the last one the state is saved.

        Raises:
            Stopped: the run was asked to leave; everything is saved, and the block's end leaves with 143.
            CannotSave: something that is tracked has no plain form (after the first step at the latest).
        """
        self.begin()
        if self._restored is not None and self._restored.ended_early and not self._settings.extend:
            at = f"step {self.step}"
            tell(f"the script ended this training itself after {at}; training.run(extend=True) goes on with it")
            total = self.step
        elif total is not None and self.step >= total:
            tell(f"all {total} steps are done already (step {self.step} in {self.directory})")
        if total is not None:
            self._heart.note(planned_steps=total)
        if self.should_stop() and self.step != total:
            self._act()
        while total is None or self.step < total:
            step = self.step
            self._in_step = True
            yield step
            self._check_mine()
            self.beat(step + 1)
            if self._ending:
                break
            if self.step != total:
                self._pass_boundary()
        self.finish()

    def begin(self) -> int:
        """The last thing before a loop of the script's own: `resume`, if it was not called, and the random states.

        Returns:
            The number of complete steps.

        Raises:
            CannotResume: as `resume`; or the checkpoint has something that the script does not track.
        """
        if self._finished and self.world > 1:
            # The others may have decided without this rank, which had no more steps.
            raise TrainingError("a second loop in a run of several ranks", "make it one loop: run.steps(all of them)")
        self.resume()
        assert self._restored is not None
        self._restored.check_all_taken(self._tracked)
        self._restored.restore_random()
        self._watch.start()
        assert self._agreement is not None
        self._begun = True
        # Until every rank has said where it begins, nothing is decided.
        self._decision = self._agreement.arrive(self.step, self._watch.wish_to_stop(time.monotonic(), None))
        return self.step

    def finish(self) -> None:
        """The training is done: in the body of `steps` after this step, in a loop of one's own now.

        The state is saved, and the run ends with 0. With several ranks all of them call it at the same step.

        Raises:
            SaveFailed: it could not be saved.
        """
        if self._in_step:
            self._ending = True
            return
        agreement = self._see_that_it_began("finish()")
        self._finished = True
        self._decision = None  # whoever is asked to leave after the last step has done all there was to do
        agreement.finish(self.step)
        if not self._checkpoints.is_durable(self.step):
            save = self._checkpoints.begin(self._own(), "finished", complete=True)
            if self._later is not None:
                self._later.stand_for(save)
            self._checkpoints.wait_for(save)

    def beat(self, step: int) -> None:
        """Say that `step` steps are complete: heartbeat, news of the last save, and what all ranks do now.

        `steps` calls it; a script with a loop of its own does, once after each step, and then asks `should_stop` and
        `should_save`.

        Raises:
            NonFinite: a logged value was NaN or infinite, and that is to end the run.
            CannotSave: after the first step, something that is tracked has no plain form.
        """
        agreement, checkpoints = self._see_that_it_began("beat()"), self._checkpoints
        now = time.monotonic()
        self._watch.add_step(now)
        step, self._in_step = layout.check_step(step), False
        if step < self.step:
            tell(
                f"the step went back from {self.step} to {step}: was the resumed step forgotten? run.begin() answers it"
            )
        self.step = step
        if self._batches is not None:
            self.epoch = self._batches.epoch
        self._heart.step(step, self.epoch)
        checkpoints.poll()
        if not self._prepared:
            self._prepared = True
            checkpoints.prepare(self._own())
            self._look_for_oversights()
        if self._heart.nonfinite != self._nonfinite_seen:
            self._on_nonfinite()
        if checkpoints.trouble and "save_failed" in self._settings.stop_on:
            self._watch.ask("save_failed", checkpoints.trouble)
        wish = self._watch.wish_to_stop(now, checkpoints.save_seconds)
        if wish is None and self.rank == 0:
            wish = self._watch.wish_to_save(step, now, checkpoints.cadence, busy=checkpoints.busy)
        decision = agreement.arrive(step, wish)
        if decision is not None:
            self._decision = decision

    # -------------------------------------------------------------------------------------------------- stop and save

    @property
    def stop_requested(self) -> bool:
        """Whether this rank knows of a reason to stop: a look at a flag, for evaluation loops that may be cut short."""
        return self._watch.reason is not None or self._watch.signals.flag != 0

    def _say_unfinished(self) -> None:
        """The block ended in peace, and nobody said that all was done."""
        if not self.should_stop() and not self._checkpoints.is_durable(self.step) and self.rank == 0:
            newest = f"step {self.last_durable[0]}" if self.last_durable else "none"
            tell(f"the loop ended at step {self.step} without run.finish(), so it is not saved; the newest is {newest}")

    def _see_that_it_began(self, what: str) -> Agreement:
        if self._agreement is None:
            raise TrainingError(f"{what} before the loop has begun", "call run.begin() first, or use run.steps()")
        return self._agreement

    def should_stop(self) -> bool:
        """Whether to leave now: True on the same step in all ranks; then leave the ``with`` block, which saves.

        Raises:
            TrainingError: the loop has not begun.
        """
        self._see_that_it_began("should_stop()")
        return self._decision is not None and self._decision.action is Action.STOP

    def should_save(self) -> bool:
        """Whether to call `save` now: on the same step in all ranks.

        Raises:
            TrainingError: the loop has not begun.
        """
        self._see_that_it_began("should_save()")
        return self._decision is not None and self._decision.action is Action.SAVE

    def stop(self, why: str = "the script asked for it") -> None:
        """Ask to stop at the next step boundary, on all ranks, as a signal would."""
        self._watch.ask("user", why)

    def save(self, *, wait: bool = False) -> Save:
        """Save the state after the steps that the last `beat` named; when it returns, everything may be changed again.

        With several ranks all of them call it at the same step. In the body of `steps` the step is not complete, and
        its state has no number: there the save begins at the end of the body.

        Args:
            wait: Return only when it is durable.

        Raises:
            CannotSave: something that is tracked has no plain form.
            SaveFailed: with `wait`, it did not become durable.
            TrainingError: with `wait` in the body of `steps`.
        """
        self.resume()
        if self._in_step:
            if wait:
                raise TrainingError(
                    "save(wait=True) in the body of run.steps(), where the step is not complete",
                    "leave out wait: it is saved at the end of the body; or write the loop with run.begin() and beat()",
                )
            self._later = self._later or Save(None, self.step + 1)
            return self._later
        reason = "script"
        if self._decision is not None and self._decision.action is Action.SAVE:
            reason, self._decision = self._decision.reason, None
        save = self._begin_save(reason)
        if wait:
            save.result()
        return save

    def _pass_boundary(self) -> None:
        """Between two steps: what was decided, and what the script asked for while the step was not complete."""
        later, self._later = self._later, None
        if later is not None and not self.should_stop():
            later.stand_for(self.save())
        elif self._decision is not None:
            self._act()

    def _act(self) -> None:
        """Do what was decided for this step boundary."""
        decision = self._decision
        assert decision is not None
        if decision.action is Action.STOP:
            raise self._save_and_stop()
        self._decision = None
        try:
            self._begin_save(decision.reason)
        except SaveFailed as error:
            tell(str(error))
            if self._watch.wish_to_stop(time.monotonic(), None) is not None:
                raise self._save_and_stop() from None

    def _check_mine(self) -> None:
        """See that the block has not ended, and that this is the process that entered it.

        Raises:
            TrainingError: it is not so; a save would meet that of the run that goes on.
        """
        if self._left:
            raise TrainingError("the run's block has ended", "make another run with training.run(...)")
        if os.getpid() != self._pid:
            raise TrainingError(
                "this process was forked inside of the run's block, and the loop is its parent's",
                "leave it with os._exit() when its work is done",
            )

    def _begin_save(self, reason: str) -> Save:
        save = self._checkpoints.begin(self._own(), reason)
        # What the loop stood still for a save is no step's time.
        self._watch.forgive(save.paused_s)
        return save

    def _own(self) -> dict[str, Any]:
        """What the library itself keeps in a checkpoint, but for the random states."""
        own = {"step": self.step, "epoch": self.epoch, "state": self.state}
        return {**own, "ended": True} if self._ending else own

    def _look_for_oversights(self) -> None:
        """After the first step everything exists that the script will ever build."""
        if self.rank != 0:
            return
        for words in oversights.find_all(self._tracked, self._rates):
            tell(words)

    def _on_nonfinite(self) -> None:
        heart = self._heart
        first, said = heart.first_nonfinite, self._nonfinite_seen > 0
        self._nonfinite_seen = heart.nonfinite
        assert first is not None
        words = f"{first.name} was not finite at step {first.step}"
        if "nonfinite" in self._settings.stop_on:
            self._checkpoints.wait(self._patience())
            kept = self.last_durable[1] if self.last_durable else "none"
            raise NonFinite(
                words, f"the newest checkpoint is {kept}: lower the learning rate, or look at the data there"
            )
        if not said:
            tell(f"{words}; the newest checkpoint from before it is kept")

    def _save_and_stop(self) -> Stopped:
        """The last save before leaving, if it fits; what is raised then."""
        watch = self._watch
        if watch.reason is None:
            watch.reason = parse_reason(self._decision.reason if self._decision else "")
        self._heart.phase("stopping")
        return Stopped(watch.reason.why, self.step, self._flush(watch.reason.why))

    def _flush(self, why: str) -> bool:
        """Whether everything up to this step is durable, after a last save where one fits before the end."""
        checkpoints = self._checkpoints
        checkpoints.saver.wait(self._patience())
        if checkpoints.is_durable(self.step):
            return True
        left = self._watch.time_left()  # after the wait: what is left of it counts
        fits, words = Budget.flush_fits(left, checkpoints.save_seconds)
        if checkpoints.busy:
            fits, words = False, "the last save is left out: the one before it is still under way"
        if self.world > 1:
            fits = self._agree_to_flush(fits=fits)
        if not fits:
            if self.rank == 0:
                tell(words)
            return False
        return checkpoints.save_now(self._own(), f"stop ({why})", timeout=self._patience)

    def _patience(self) -> float | None:
        """Seconds for which a writer may be waited for so that leaving still fits; None when nobody ends us."""
        left = self._watch.time_left()
        return None if left is None else max(left - LAST_S, 0.1)

    def _agree_to_flush(self, *, fits: bool) -> bool:
        """Either all ranks save or none: the clock of the first one decides."""
        assert self._agreement is not None
        try:
            if self.rank == 0:
                self._agreement.publish(FLUSH, b"1" if fits else b"0")
                return fits
            return self._agreement.wait_for(FLUSH, FLUSH_WAIT_S) == b"1"
        except (AgreementLost, OSError) as error:
            tell(f"no last save: {error}")
            return False

    def _leave(self, error: BaseException | None) -> None:
        """Close everything and say why; nothing is raised from here."""
        began = time.monotonic()
        record = self._describe_end(error)
        if isinstance(error, Stopped) and self.rank == 0:
            where = self.last_durable[1] if self.last_durable else "the beginning: nothing was saved yet"
            why = f"{record['why']}: {record['detail']}"
            tell(f"stopped at step {self.step} ({why}); the same command continues from {where}")
        # Once before the stages, which may hang or be cut off, and once after them.
        leaving.write_record(self._promises.stop_record, record, self.rank)
        leaving.close_all(self._stages(error))
        record = {**self._describe_end(error), "seconds": round(time.monotonic() - began, 3)}
        leaving.write_record(self._promises.stop_record, record, self.rank)
        for lock in (self._lock, self._mirror_lock):
            if lock is not None:
                leaving.guard("directory lock", lock.release)
        self._left = True

    def _describe_end(self, error: BaseException | None) -> dict[str, Any]:
        return leaving.describe_end(
            error, self._watch.reason, step=self.step, durable=self.last_durable, finished=self._finished
        )

    def _stages(self, error: BaseException | None) -> Iterator[tuple[str, Callable[[], object]]]:
        """What is closed, in this order."""
        from functools import partial

        for name, tracked in self._tracked.items():
            close = getattr(tracked.target, "close", None)
            if callable(close) and tracked.target is self._batches:
                yield f"loader {name}", close
        if isinstance(error, Stopped):
            for call in self._on_stop:
                name = getattr(call, "__qualname__", type(call).__name__)
                yield f"on_stop callback {name}", partial(call, error.why)
            yield "process group", leaving.destroy_process_group
        yield "checkpoint writer", lambda: self._checkpoints.close(self._patience())
        if self._agreement is not None:
            yield "agreement of the ranks", self._agreement.close
        if self._promises.stacks is not None:
            from .reporting import stacks

            yield "stack dumps", stacks.uninstall
        yield "signal handlers", self._watch.signals.restore
        if error is None:
            # A script that leaves its loop before the planned end, and the block in order, has done all that it wanted.
            self._heart.note(planned_steps=self.step)
        self._heart.phase("stopped" if isinstance(error, Stopped) else "finished" if error is None else "failed")
        yield "heartbeat", self._heart.close

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
            self._watch.forgive(time.monotonic() - began)

    def on_stop(self, call: Callable[[str], object]) -> Callable[[str], object]:
        """Have `call(why)` called after the last save when the run is asked to leave: finish trackers, tell people."""
        self._on_stop.append(call)
        return call
