"""The queue of one account on one box: a database made from committed files (docs/queue.md).

Every submission and order is first committed as a file of the journal, then applied here in one transaction that also
notes how far the journal has been applied. So a database that is lost, damaged or behind is made again from the journal
and, for what has started since, from the run directories. Several processes use it at once: command lines write
submissions and orders, the worker alone moves cells on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from ..model.queue import Cell, CellState, Group, Order, QueueSettings, Submission


def queue_directory() -> str:
    """``$HOLDFAST_QUEUE``, else ``<state directory>/queue/<host name>``: one queue for each account and box."""
    raise NotImplementedError


class Queue:
    """An open queue; use as a context manager. `notice` says, for people, when it had to be rebuilt, else None."""

    notice: str | None
    directory: str

    def __init__(
        self, directory: str | None = None, *, find_runs: Callable[[Iterable[str], str], Iterable[Cell]] | None = None
    ) -> None:
        """Open it; make it when there is none; bring it up to date with the journal.

        `find_runs(runs_roots, queue_id)` answers, for a rebuild, what the run directories say about their cells.

        Raises:
            NotPermitted: the directory belongs to somebody else or others may write it.
            StorageError: it cannot be read or written, or another process has had it locked for too long.
        """
        raise NotImplementedError

    def __enter__(self) -> Queue:  # noqa: PYI034 - typing.Self is newer than Python 3.10
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Close the database."""
        raise NotImplementedError

    # --- command lines ----------------------------------------------------------------------------------------------

    def submit(self, submission: Submission) -> tuple[int, ...]:
        """Commit a submission; the ids of its cells in order.

        Cells whose (group, name) is there already with the same `sha256` are left out (handing a file in again adds
        only what is new); the ids are then those of the known cells.

        Raises:
            UsageError: two cells have one name, a name is taken by another configuration, a dependency is not known,
                or they form a cycle; nothing was taken. All mistakes (up to ten) are in the message.
            StorageError: the disk took nothing; the journal is as before.
        """
        raise NotImplementedError

    def order(self, order: Order) -> tuple[Cell, ...]:
        """Commit an order; the cells that it changed, as they are now.

        CANCEL takes waiting cells out; active ones keep their state (the caller or the worker stops their runs and
        the worker notes the end). RETRY queues failed, cancelled and held cells again.

        Raises:
            UsageError: it names what is not there, or does not fit the cell's state.
        """
        raise NotImplementedError

    def find(self, words: Sequence[str]) -> tuple[Cell, ...]:
        """The cells that people mean: a name of the default group, ``group/name``, ``group/`` or a group's name, a run id.

        Raises:
            UsageError: a word fits nothing; near names are proposed.
        """
        raise NotImplementedError

    def cells(
        self, *, group: str | None = None, states: Iterable[CellState] = (), limit: int | None = None
    ) -> list[Cell]:
        """Cells in the order in which they would start; without `states` all."""
        raise NotImplementedError

    def counts(self) -> dict[str, dict[CellState, int]]:
        """How many cells stand where, by group, in order of the groups' first submission."""
        raise NotImplementedError

    def groups(self) -> dict[str, Group]:
        """Every group, in order of its first submission."""
        raise NotImplementedError

    def settings(self) -> QueueSettings:
        """What holds for the whole queue."""
        raise NotImplementedError

    def submission_of(self, cell_id: int) -> Submission:
        """The submission that a cell came with, its `cells` holding that one cell only."""
        raise NotImplementedError

    def needs_of(self, cell_id: int) -> tuple[Cell, ...]:
        """What a cell needs that is not proven done."""
        raise NotImplementedError

    def durations(self, cell_id: int) -> tuple[float, ...]:
        """Seconds that done cells of the same group and base took, newest first, at most 50: for estimates."""
        raise NotImplementedError

    # --- the worker -------------------------------------------------------------------------------------------------

    def candidates(
        self, *, now: float, limit: int, without_groups: Iterable[str], cards: bool, slots: bool
    ) -> list[Cell]:
        """QUEUED cells whose time has come, best first; `cards`/`slots` say whether cells of that kind are of use."""
        raise NotImplementedError

    def active(self) -> list[Cell]:
        """Cells that are CLAIMED, RUNNING or PRODUCED."""
        raise NotImplementedError

    def next_time(self, now: float) -> float | None:
        """The next `not_before` that a queued cell waits for."""
        raise NotImplementedError

    def move_on(self, cell_id: int, state: CellState, **facts: object) -> Cell:
        """Commit a cell's next state with fields of `Cell` (run_id, outcome, note, ...); answers it as it is now.

        In the same transaction: when it becomes DONE, what needed it needs one less (and becomes QUEUED at none);
        when it leaves CLOSED_STATES again, what needs it becomes BLOCKED.
        """
        raise NotImplementedError

    def hold_group(self, name: str, why: str) -> None:
        """Stop a group by itself; `queue resume` lets it go on."""
        raise NotImplementedError
