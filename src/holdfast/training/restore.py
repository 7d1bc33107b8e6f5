"""From a directory of checkpoints to a restored run: the same choice on every rank, nothing taken silently.

Rank 0 proves and chooses, the others load what it chose. What is tracked but not in the checkpoint, or the other way
round, is an error: continuing with half of a state is worse than not continuing.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.model import step_names

from .errors import CannotResume, NoValidCheckpoint
from .randomness import rng
from .reporting.heartbeat import write_stderr
from .storage import checkpoints, layout
from .storage.layout import OWN

if TYPE_CHECKING:
    from .ranks.agreement import Agreement
    from .tracking import Tracked

CHOICE = "resume"
CHOICE_WAIT_S = 1800.0
"""How long the other ranks wait for rank 0 to read and prove: minutes for a checkpoint of terabytes."""
ADVICE = "run the script that made it, or give this one a directory of its own"


class RestoredStates:
    """What was found: the states that have not been taken yet. Without a checkpoint it is empty."""

    def __init__(self, loaded: checkpoints.LoadedCheckpoint | None) -> None:
        """`loaded` None: there is no checkpoint at all."""
        self.path = "" if loaded is None else loaded.path
        self._states = {} if loaded is None else loaded.states
        self._known = frozenset(self._states)
        self._found = loaded is not None
        self._random: dict[str, Any] | None = None
        self.own: dict[str, Any] | None = self._states.pop(OWN, None)
        if loaded is not None and not isinstance(self.own, dict):
            raise CannotResume(f"{self.path} was not written by a run of this library", ADVICE)
        self.ended_early = self.own is not None and self.own.get("ended") is True
        if self.own is not None:
            self._random = self.own.pop("random", None)

    def restore(self, tracked: Tracked) -> None:
        """Put back the state of one tracked thing.

        Raises:
            CannotResume: the checkpoint has none for it, or one that does not fit.
        """
        if not self._found:
            return
        if tracked.name not in self._states:
            names = ", ".join(sorted(self._known - {OWN})) or "nothing"
            raise CannotResume(f"{self.path} has no {tracked.name!r}; it has {names}", ADVICE)
        tracked.restore(self._states.pop(tracked.name))

    def check_all_taken(self, tracked: Mapping[str, Tracked]) -> None:
        """See that the script tracks everything that was saved.

        Raises:
            CannotResume: it does not; the error names what is left over.
        """
        left = sorted(self._states.keys() - tracked.keys())
        if left:
            raise CannotResume(
                f"{self.path} also has {', '.join(left)}, which this script does not track",
                f"track it before the loop begins, or {ADVICE}",
            )

    def restore_random(self) -> None:
        """Put the random states back; once, when everything that draws numbers while it is built has been built."""
        state, self._random = self._random, None
        if state is not None:
            for warning in rng.restore_states(state):
                write_stderr(warning)


def find_checkpoint(
    directory: str, mirror: str | None, agreement: Agreement, *, seed: int | None, say: Callable[[str], None]
) -> RestoredStates:
    """The newest valid checkpoint of the directory or its mirror, loaded on this rank.

    Raises:
        CannotResume: there are checkpoints, and none can be continued with this script.
    """
    if agreement.rank == 0:
        try:
            loaded = _choose(directory, mirror, say)
        except (CannotResume, OSError) as error:
            agreement.publish(CHOICE, json.dumps({"error": str(error)}).encode())
            raise
        agreement.publish(CHOICE, json.dumps({"path": loaded.path if loaded else ""}).encode())
    else:
        choice = json.loads(agreement.wait_for(CHOICE, CHOICE_WAIT_S))
        if "error" in choice:
            raise CannotResume(f"rank 0 found nothing to continue: {choice['error']}")
        loaded = _load_chosen(choice["path"], agreement.rank) if choice["path"] else None
    if loaded is None:
        if agreement.rank == 0 and os.environ.get("HOLDFAST_REASON") in ("resume", "requeue", "retry"):
            say(f"{directory} has no checkpoint: an earlier attempt ended before its first save; beginning at step 0")
        return RestoredStates(None)
    _check_fit(loaded, agreement, seed)
    _add_replicated(loaded, agreement.rank)
    if agreement.rank == 0:
        say(f"resuming after step {loaded.record.step} from {loaded.path}")
    return RestoredStates(loaded)


def _choose(directory: str, mirror: str | None, say: Callable[[str], None]) -> checkpoints.LoadedCheckpoint | None:
    """The newest that proves right, of both directories."""
    for path in checkpoints.remove_leftovers(directory):
        say(f"removed {path}, which a save that was cut off had left")
    places = [directory]
    if mirror is not None:
        with contextlib.suppress(OSError):
            checkpoints.remove_leftovers(mirror)
        # By their names; the one that promises less is read only when the other one does not keep its promise.
        places = sorted((directory, mirror), key=_newest_step, reverse=True)
    best: checkpoints.LoadedCheckpoint | None = None
    problem: CannotResume | None = None
    for place in places:
        if best is not None and _newest_step(place) <= best.record.step:
            continue
        try:
            found = _report(checkpoints.find_newest(place, aside=place == directory, whole=True), say)
        except (NoValidCheckpoint, OSError) as error:
            problem = error if isinstance(error, CannotResume) else CannotResume(f"{place} cannot be read: {error}")
            say(str(problem))
            continue
        if found is not None and (best is None or found.record.step > best.record.step):
            best = found
    if best is None and problem is not None:
        raise problem
    if best is not None and os.path.dirname(best.path) == mirror:
        say(f"{directory} has no valid checkpoint as new as the mirror's")
    return best


def _newest_step(directory: str) -> int:
    """-1 without any; only looks at names."""
    try:
        return max(
            (step for name in os.listdir(directory) if (step := step_names.parse_step(name)) is not None), default=-1
        )
    except OSError:
        return -1


def _report(search: checkpoints.CheckpointSearch, say: Callable[[str], None]) -> checkpoints.LoadedCheckpoint | None:
    for verdict in search.passed_over:
        kept = "kept where it is" if verdict.unreadable else "set aside"
        say(f"checkpoint {verdict.path} is not used ({verdict.problems[0]}) and {kept}; the one before it is")
    return search.found


def _load_chosen(path: str, rank: int) -> checkpoints.LoadedCheckpoint:
    try:
        record = checkpoints.load_checkpoint(path, 0, frozenset()).record
        return checkpoints.load_checkpoint(path, rank if rank < record.world else 0)
    except (layout.LayoutError, OSError) as error:
        raise CannotResume(f"rank {rank} cannot load {path}, which rank 0 has proven: {error}") from None


def _check_fit(loaded: checkpoints.LoadedCheckpoint, agreement: Agreement, seed: int | None) -> None:
    record = loaded.record
    if seed is not None and record.seed is not None and seed != record.seed:
        raise CannotResume(
            f"{loaded.path} was made with seed {record.seed}, this script has seed {seed}",
            f"give seed={record.seed} to continue it, or another directory to begin a new run",
        )
    own = sorted(name for name, what in record.tracked.items() if not what.get("replicated"))
    if record.world != agreement.world and own:
        raise CannotResume(
            f"{loaded.path} was made by {record.world} ranks, this run has {agreement.world}, "
            f"and {', '.join(own)} was saved by each rank for itself",
            f"run with {record.world} ranks, or track what is the same on all ranks with replicated=True",
        )


def _add_replicated(loaded: checkpoints.LoadedCheckpoint, rank: int) -> None:
    """What only rank 0 saved, because all have the same."""
    names = frozenset(name for name, what in loaded.record.tracked.items() if what.get("replicated"))
    if rank > 0 and names - loaded.states.keys():
        loaded.states.update(checkpoints.load_checkpoint(loaded.path, 0, names).states)


def is_loader(target: object) -> bool:
    """Whether this is torch's DataLoader, which knows no position of its own and is followed instead."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(target, torch.utils.data.DataLoader) and not hasattr(target, "state_dict")


def is_finite(value: object) -> bool:
    """Whether a logged value is neither NaN nor infinite; what is no floating number is finite."""
    return not isinstance(value, float) or math.isfinite(value)


def plain_metrics(values: Mapping[str, object]) -> dict[str, Any]:
    """The last logged values as strict JSON has them: NaN and infinities as text."""
    return {name: value if is_finite(value) else repr(value) for name, value in values.items()}
