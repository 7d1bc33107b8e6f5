"""Several runs stopped at the same time, so that their graces pass together; each gets its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread
from typing import TYPE_CHECKING

from holdfast.model.record import record

from .stop import StopResult, stop_run

if TYPE_CHECKING:
    from holdfast.agent.view.run_view import RunView


@record
class StopWish:
    """How runs are to be stopped: at once or with their grace, why, and how long to wait (None: their grace)."""

    now: bool
    reason: str
    wait_s: float | None


@record
class NotStopped:
    """A run that could not be stopped, as it was named, and the error: what was seen, and what to do."""

    name: str
    code: str
    message: str
    hint: str
    exit_code: int


@record
class StoppedRuns:
    """What became of a stop of several runs; `errors` are of those that could not be, `exit_code` is the largest."""

    runs: tuple[StopResult, ...]
    errors: tuple[NotStopped, ...]
    exit_code: int


def stop_together(
    run_dirs: Sequence[str], wish: StopWish, *, tell: Callable[[RunView], None]
) -> list[StopResult | Exception]:
    """Stop each run of this account and wait for all: what became of each, in their order, or what was raised."""
    results: dict[str, StopResult | Exception] = {}

    def stop_one(run_dir: str) -> None:
        try:
            results[run_dir] = stop_run(run_dir, force=wish.now, reason=wish.reason, wait_s=wish.wait_s, tell=tell)
        except Exception as error:  # noqa: BLE001 - the others are stopped all the same
            results[run_dir] = error

    # Daemons: an interrupt ends the waiting, and the requests are written.
    threads = [Thread(target=stop_one, args=(run_dir,), daemon=True) for run_dir in run_dirs[1:]]
    for thread in threads:
        thread.start()
    for run_dir in run_dirs[:1]:
        stop_one(run_dir)
    for thread in threads:
        thread.join()
    return [results[run_dir] for run_dir in run_dirs]
