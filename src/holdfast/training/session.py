"""`Run`: what a training script holds in its hands; `start.run` makes it. All else in this package is behind it.

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
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any

from holdfast.model import step_names

from . import exit_stages, forgotten_state, restore, tracking
from .box import environment
from .cadence import DEFAULT_INTERRUPTION_S, Cadence
from .checkpointer import Checkpointing
from .data import batches as data
from .data.batches import Batches
from .data.takeover import take_over
from .errors import NonFinite, SaveFailed, Stopped, TrainingError
from .last_save import save_before_leaving
from .randomness.rng import describe_flags
from .ranks.agreement import Action, Agreement, RankDecision, read_ranks
from .ranks.files import find_directory
from .ranks.join import join_ranks
from .reporting import stacks
from .reporting.heartbeat import Heartbeat, write_stderr
from .settings import Settings
from .stopping.watch import StopMonitor, parse_reason
from .storage.directory_lock import DirectoryLock, lock_directory
from .storage.layout import OWN
from .storage.write.mirror import claim
from .storage.write.save import Save
from .tracking import Tracked

JOIN_S = 600.0
"""How long the ranks wait for each other at the start: imports on a shared file system take minutes."""
LOOK_S = 0.05
"""A loop of shorter steps looks so often at what may wait that long: deadlines, the request file, the writer."""


class Run:
    """A running training; made by `training.run`.

    Attributes:
        directory: Where its checkpoints are.
        step: Complete steps so far.
        epoch: The epoch, 0-based, when `batches` are followed or the script sets it; else None.
        state: A dictionary of plain values (and arrays) of the script's own, saved and restored with everything else.
        rank, world: This process among those that train together.
    """

    def __init__(self, settings: Settings, context: environment.JobContext) -> None:
        """Nothing happens before the ``with`` block is entered."""
        self.directory = settings.directory
        self.step = 0
        self.epoch: int | None = None
        self.state: dict[str, Any] = {}
        ranks = read_ranks(os.environ)
        self.rank, self.world, self._local_world, self._key = ranks.rank, ranks.world, ranks.local_world, ranks.key
        self._settings, self._context = settings, context
        self._tracked: dict[str, Tracked] = {}
        self._batches: Batches | None = None
        self._on_stop: list[Callable[[str], object]] = []
        self._decision: RankDecision | None = None
        self._agreement: Agreement | None = None
        self._lock: DirectoryLock | None = None
        self._mirror_lock: DirectoryLock | None = None
        self._restored: restore.RestoredStates | None = None
        self._prepared = self._finished = self._entered = self._begun = self._ending = self._left = False
        self._in_step = False  # between two boundaries of `steps`
        self._later: Save | None = None
        self._pid = os.getpid()
        self._nonfinite_seen = 0
        self._look_at, self._look_step = 0.0, 0.0  # the time and the step of the next look, whichever comes first
        self._rates: tuple[dict[str, list[float]], dict[str, list[float]]] = ({}, {})
        self._watch = StopMonitor(context.checkpoint_request, settings.time_limit_s, write_stderr)
        speaks = self.rank == 0
        self._heart = Heartbeat(context.heartbeat if speaks else None, context.metrics if speaks else None)
        cadence = Cadence(settings.every, interruption_s=context.interruption_s or DEFAULT_INTERRUPTION_S)
        self._checkpoints = Checkpointing(settings, context, cadence, self._heart, self._tracked)
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
        context, settings = self._context, self._settings
        environment.hold_standard_streams()
        for problem in context.problems:
            write_stderr(problem)
        if context.seed is not None and settings.seed not in (None, context.seed) and self.rank == 0:
            write_stderr(
                f"WARNING: this training uses seed {settings.seed}, which the script gives, and not seed "
                f"{context.seed}, which the job states (`seed:`, --seed); to have the job's used, write "
                'training.run(seed=int(os.environ.get("HOLDFAST_SEED", 0)))'
            )
        applied = environment.apply_environment(
            context, seed=settings.seed, rank=self.rank, deterministic=settings.deterministic
        )
        for note in applied.notes:
            write_stderr(note)
        if applied.seeds is not None:
            self._heart.note(seed=applied.seeds["seed"], determinism=describe_flags(applied.seeds))
        if context.stacks is not None:
            stacks.install(environment.of_rank(context.stacks, self.rank))
        stacks.answer_quit()
        if self.rank == 0:
            exit_stages.forget_record(context.stop_record)
        self._watch.signals.install()
        if not self._watch.signals.installed:
            write_stderr(
                "not in the main thread: signals do not stop this run, and its exit code is for the script to set"
            )
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
            self._checkpoints.wait(self._watch.patience())
            newest = f"step {self.last_durable[0]}" if self.last_durable else "none"
            write_stderr(
                f"the loop was left inside of step {self.step}, which is not saved; the newest checkpoint is {newest}"
            )
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
        if len(unnamed) > 1:
            raise TrainingError(f"track() got {len(unnamed)} things without a name", "name them: track(model=model)")
        for name, target in [*(("state", item) for item in unnamed), *named.items()]:
            if name in self._tracked or name == OWN:
                raise TrainingError(f"{name!r} is tracked already", "give it another name")
            if target is None:
                continue
            if isinstance(target, (bool, int, float, str)):
                self.state.setdefault(name, target)
            elif restore.is_loader(target):
                take_over(target, self.batches(target, name=name), lambda: self._begun)
            else:
                self._add(tracking.classify_target(name, target, replicated))

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
        if loader is None:
            if self._batches is None:
                raise TrainingError("there is no loader yet", "give one: run.batches(loader)")
            return self._batches
        known = self._tracked.get(name)
        if known is not None and getattr(known.target, "loader", None) is loader:
            assert isinstance(known.target, data.Batches)
            return known.target
        followed = data.follow(loader, name=name, **options)
        self._add(tracking.Tracked(name, followed, tracking.TrackedKind.STATEFUL))
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
            self._lock = lock_directory(self.directory, write_stderr)
            if self._settings.mirror is not None:
                self._mirror_lock = claim(self._settings.mirror, self.directory, write_stderr)
        self._agreement = join_ranks(
            rank=self.rank,
            world=self.world,
            local_world=self._local_world,
            directory=self.directory if self.world == 1 else find_directory(self.directory),
            key=self._key,
            timeout_s=JOIN_S,
        )
        settings = self._settings
        restored = restore.find_checkpoint(
            self.directory, settings.mirror, self._agreement, seed=settings.seed, say=write_stderr
        )
        self._restored = restored
        built = forgotten_state.read_rates(self._tracked)
        for tracked in self._tracked.values():
            restored.restore(tracked)
        self._rates = (built, forgotten_state.read_rates(self._tracked))
        if restored.own is not None:
            self.step, self.epoch = int(restored.own["step"]), restored.own["epoch"]
            self.state.update(restored.own["state"])
        self._checkpoints.open(self._agreement, restored, self.step, self._lock.fd if self._lock else None)
        self._heart.step(self.step, self.epoch)
        self._heart.note(start_step=self.step)  # a fact is written with the next step: so the first one is, at once
        self._heart.phase("train")
        self._watch.start()
        return self.step

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
            write_stderr(f"the script ended this training itself after {at}; training.run(extend=True) goes on with it")
            total = self.step
        elif total is not None and self.step >= total:
            more = "" if self.step == total else f", {self.step - total} more than this script asks for"
            write_stderr(f"all {total} steps are done already (step {self.step} in {self.directory}{more})")
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
            if self.step != total and (self._decision is not None or self._later is not None):
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
        self._say_changed_rates()
        self._watch.start()
        assert self._agreement is not None
        self._begun = True
        # Until every rank has said where it begins, nothing is decided.
        self._decision = self._agreement.arrive(self.step, self._watch.propose_stop(time.monotonic(), None))
        return self.step

    def _say_changed_rates(self) -> None:
        """What goes on where the script builds an optimizer with another learning rate than before."""
        own = None if self._restored is None else self._restored.own
        if own is None or self._begun or self.rank != 0:
            return
        built, restored = self._rates
        now = forgotten_state.read_rates(self._tracked)
        told = forgotten_state.compare_built(own.get("rates"), built, restored, now)
        for words in told.values():
            write_stderr(words)
        # What was said of one is not judged once more after the first step.
        self._rates = (built, {name: rates for name, rates in restored.items() if name not in told})

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
        agreement = self._see_that_it_began("beat()")
        now = time.monotonic()
        self._watch.add_step(now)
        step, self._in_step = step_names.check_step(step), False
        if step < self.step:
            write_stderr(
                f"the step went back from {self.step} to {step}: was the resumed step forgotten? run.begin() answers it"
            )
        self.step = step
        if self._batches is not None:
            self.epoch = self._batches.epoch
        self._heart.step(step, self.epoch)
        if now >= self._look_at or step >= self._look_step or self.world > 1 or self.stop_requested:
            self._look(agreement, step, now)
        elif self._heart.nonfinite != self._nonfinite_seen:
            self._on_nonfinite()

    def _look(self, agreement: Agreement, step: int, now: float) -> None:
        """Find out what is to be done after this step: hear how the last save went, ask all ranks."""
        checkpoints = self._checkpoints
        checkpoints.poll()
        if not self._prepared:
            self._prepared = True
            checkpoints.prepare(self._own())
            self._look_for_oversights()
        if self._heart.nonfinite != self._nonfinite_seen:
            self._on_nonfinite()
        self._look_at, self._look_step = now + LOOK_S, checkpoints.cadence.next_step
        if checkpoints.trouble and "save_failed" in self._settings.stop_on:
            self._watch.ask("save_failed", checkpoints.trouble)
        wish = self._watch.propose_stop(now, checkpoints.save_seconds)
        if wish is None and self.rank == 0:
            wish = self._watch.propose_save(step, now, checkpoints.cadence, busy=checkpoints.busy)
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
            write_stderr(
                f"the loop ended at step {self.step} without run.finish(), so it is not saved; the newest is {newest}"
            )

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
            write_stderr(str(error))
            if self._watch.propose_stop(time.monotonic(), None) is not None:
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
        own = {"step": self.step, "epoch": self.epoch, "state": self.state, "rates": self._rates[0]}
        return {**own, "ended": True} if self._ending else own

    def _look_for_oversights(self) -> None:
        """After the first step everything exists that the script will ever build."""
        if self.rank != 0:
            return
        for words in forgotten_state.find_all(self._tracked, self._rates, self.state):
            write_stderr(words)

    def _on_nonfinite(self) -> None:
        heart = self._heart
        first, said = heart.first_nonfinite, self._nonfinite_seen > 0
        self._nonfinite_seen = heart.nonfinite
        assert first is not None
        words = f"{first.name} was not finite at step {first.step}"
        if "nonfinite" in self._settings.stop_on:
            self._checkpoints.wait(self._watch.patience())
            kept = self.last_durable[1] if self.last_durable else "none"
            raise NonFinite(
                words, f"the newest checkpoint is {kept}: lower the learning rate, or look at the data there"
            )
        if not said:
            write_stderr(f"{words}; the newest checkpoint from before it is kept")

    def _save_and_stop(self) -> Stopped:
        """The last save before leaving, if it fits; what is raised then."""
        watch = self._watch
        if watch.reason is None:
            watch.reason = parse_reason(self._decision.reason if self._decision else "")
        self._heart.phase("stopping")
        agreement = self._agreement if self.world > 1 else None
        saved = save_before_leaving(self._checkpoints, watch, agreement, self._own(), self.rank)
        return Stopped(watch.reason.why, self.step, saved)

    def _leave(self, error: BaseException | None) -> None:
        """Close everything and say why; nothing is raised from here."""
        began = time.monotonic()
        record = self._describe_end(error)
        if isinstance(error, Stopped) and self.rank == 0:
            where = self.last_durable[1] if self.last_durable else "the beginning: nothing was saved yet"
            why = f"{record['why']}: {record['detail']}"
            run_id = self._context.run_id
            again = f"its next attempt (`holdfast restart {run_id}`)" if run_id else "the same command"
            write_stderr(f"stopped at step {self.step} ({why}); {again} continues from {where}")
        # Once before the stages, which may hang or be cut off, and once after them.
        exit_stages.write_record(self._context.stop_record, record, self.rank)
        exit_stages.close_all(self._stages(error))
        record = {**self._describe_end(error), "seconds": round(time.monotonic() - began, 3)}
        exit_stages.write_record(self._context.stop_record, record, self.rank)
        for lock in (self._lock, self._mirror_lock):
            if lock is not None:
                exit_stages.run_stage("directory lock", lock.release)
        self._left = True

    def _describe_end(self, error: BaseException | None) -> dict[str, Any]:
        return exit_stages.describe_end(
            error, self._watch.reason, step=self.step, durable=self.last_durable, finished=self._finished
        )

    def _stages(self, error: BaseException | None) -> Iterator[tuple[str, Callable[[], object]]]:
        """What is closed, in this order."""
        for name, tracked in self._tracked.items():
            close = getattr(tracked.target, "close", None)
            if callable(close) and tracked.target is self._batches:
                yield f"loader {name}", close
        if isinstance(error, Stopped):
            for call in self._on_stop:
                name = getattr(call, "__qualname__", type(call).__name__)
                yield f"on_stop callback {name}", partial(call, error.why)
            yield "process group", exit_stages.destroy_process_group
        yield "checkpoint writer", lambda: self._checkpoints.close(self._watch.patience())
        if self._agreement is not None:
            yield "agreement of the ranks", self._agreement.close
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
