"""The settings of a run: the script's arguments, and the supervisor's word.

The supervisor's wins, because it can be given without touching the script.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from zlib import crc32

from holdfast.model.record import record

from .cadence import CadenceKind, SaveInterval, parse_every
from .storage.checkpoints import Retention

if TYPE_CHECKING:
    from .box.environment import JobContext

MOST_BEST = 3


@record
class Settings:
    """What `run()` was asked for. `time_limit_s` in seconds; `stop_on`: which troubles end the run."""

    directory: str
    every: SaveInterval
    keep: Retention
    seed: int | None = None
    deterministic: bool = False
    time_limit_s: float | None = None
    mirror: str | None = None
    stop_on: frozenset[str] = frozenset()
    asynchronous: bool = True
    extend: bool = False


def choose_directory(given: str | os.PathLike[str] | None, context: JobContext) -> str:
    """Where checkpoints are: as given, else as the supervisor says, else ``checkpoints`` beside the script's files.

    In a rehearsal (`holdfast drill`) a directory that the script names is left alone, because what is in it belongs to
    the real training: one inside of the run's own stands for it.
    """
    name = os.fsdecode(given) if given is not None else context.checkpoint_dir or "checkpoints"
    try:
        path = os.path.abspath(name)
    except FileNotFoundError:
        raise ValueError(f"{name!r} is relative to the working directory, which is gone: give a whole path") from None
    own = context.checkpoint_dir
    if not context.rehearsal or own is None or path == os.path.abspath(own):
        return path

    return os.path.join(os.path.abspath(own), f"{os.path.basename(path)[:50]}-{crc32(os.fsencode(path)):08x}")


def choose_mirror(given: str | os.PathLike[str] | None, context: JobContext, directory: str) -> str | None:
    """The second directory, None without one, and in a rehearsal.

    Raises:
        ValueError: it is the first one.
    """
    mirror = os.fsdecode(given) if given is not None else context.mirror
    if not mirror or context.rehearsal:
        return None
    if os.path.realpath(mirror) == os.path.realpath(directory):
        raise ValueError(f"mirror={mirror!r} is the directory of the checkpoints itself: give one on other storage")
    return os.path.abspath(mirror)


def choose_retention(context: JobContext, keep_last: int, keep_best: int, metric: str, mode: str) -> Retention:
    """What is kept.

    Raises:
        ValueError: fewer than 1 newest, more than `MOST_BEST` best, or another mode than min and max.
    """
    if mode not in ("min", "max"):
        raise ValueError(f'mode={mode!r}: give "min" or "max"')
    if keep_last < 1 or not 0 <= keep_best <= MOST_BEST:
        raise ValueError(
            f"keep_last={keep_last}, keep_best={keep_best}: keep 1 newest or more, and 0 to {MOST_BEST} best"
        )
    return Retention(context.keep_last or keep_last, keep_best, metric, mode)


def choose_time_limit(given: float | str | None) -> float | None:
    """Seconds, from a number or a text such as ``"2h"``.

    Raises:
        ValueError: it makes no sense.
    """
    if not isinstance(given, str):
        return given
    parsed = parse_every(given)
    if parsed.kind is not CadenceKind.TIME:
        raise ValueError(f'time_limit={given!r} is not a time: write seconds, or "90s", "10m", "2h"')
    return parsed.amount


def choose_every(given: str | int | None, context: JobContext) -> SaveInterval:
    """How often to save.

    Raises:
        ValueError: it makes no sense.
    """
    return parse_every(context.every if context.every is not None else given)


def choose_stops(on_nonfinite: str, on_save_failure: str) -> frozenset[str]:
    """Which troubles end the run.

    Raises:
        ValueError: a policy that does not exist.
    """
    policies = (
        ("nonfinite", "on_nonfinite", on_nonfinite, "warn"),
        ("save_failed", "on_save_failure", on_save_failure, "continue"),
    )
    for _, name, value, mild in policies:
        if value not in (mild, "stop"):
            raise ValueError(f'{name}={value!r}: give "{mild}" or "stop"')
    return frozenset(what for what, _, value, _ in policies if value == "stop")
