"""Agreement through a shared file, for ranks that all run on one host: no system call in a step without a decision.

The protocol. Each rank has the word `begun`: the step it has begun, or is about to. The `sequence` of the board is even
between decisions and odd while one is being made.

A rank that arrives stores begun = done + 1 and *then* loads the sequence. A rank that decides makes the sequence odd
and *then* loads everybody's `begun`. So of a rank that arrives and a rank that decides at the same time at least one
sees the other (Dekker): either the decision counts the step that the rank is about to begin, or the rank sees the odd
sequence and waits until it is even again. The decided step is the farthest that anybody has begun: nobody has passed
it, and everybody will reach it.

Each rank acknowledges a decision when it acts on it, and the next one is made only after all have; a rank that has
finished or died is not waited for. Only the holder of a record lock decides. The kernel frees the lock of a process
that is killed, so whoever waits for an odd sequence and gets the lock knows that the decider died, and takes its
attempt back.
"""

from __future__ import annotations

import fcntl
import hashlib
import threading
import time
from collections.abc import Iterator

from holdfast.host.files import files

from . import files as board_files
from .agreement import JOIN_TIMEOUT_S, Action, AgreementLost, RankDecision, RankProposal, nobody_published, shorten
from .files import (
    ACKED,
    ACTION_AT,
    BEGUN,
    CLOSED,
    DECIDER_AT,
    EMPTY,
    FINISHED,
    HEADER,
    LENGTH_AT,
    NOT_YET,
    REASON_AT,
    SEQUENCE_AT,
    SLOT,
    STATE,
    STEP_AT,
    WORD,
)

SETTLE_S = 0.0005
"""A decider sleeps this long between its store and its loads: see `_read_the_farthest`."""

LIVENESS_S = 0.2
"""How often, at most, a proposal that waits for acknowledgements looks whether the others still live."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0001, 0.02


class Board:
    """All ranks on one host, meeting at ``<directory>/.ranks-<key>``."""

    def __init__(self, *, rank: int, world: int, directory: str, key: str, timeout_s: float = JOIN_TIMEOUT_S) -> None:
        """Meet the others: rank 0 makes the board, everybody waits until all have come.

        Raises:
            AgreementLost: somebody did not come in time, or came and died.
            TrainingError: the place is taken.
            OSError: the board cannot be made or mapped.
        """
        self.rank, self.world = rank, world
        self._timeout_s = timeout_s
        path = f"{directory}/{board_files.PREFIX}{key}"
        end = time.monotonic() + timeout_s
        if rank == 0:
            board_files.remove_ended_boards(directory)
            self._board = board_files.create_board(path, world)
            self._board.claim(0)
            self._await_everybody(end)
        else:
            self._meet(path, end)
        self.token = self._board.token
        self._words = self._board.words
        self._slot = HEADER + SLOT * rank
        self._settled = 0
        self._looked_at = 0.0
        # An uncontended lock is a locked instruction when taken: on x86 a full fence, which the hot path needs between
        # its store and its load, because the processor may otherwise do the load first. Python has no other fence.
        self._fence = threading.Lock()
        # A file system without locks (ENOLCK) is better known at the start than when the first decision is due.
        if self._lock():
            self._unlock()

    # ------------------------------------------------------------------------------------------------------ each step

    def arrive(self, done: int, proposal: RankProposal | None) -> RankDecision | None:
        """As `Agreement.arrive`: without a decision, one store, one fence and one load."""
        words = self._words
        words[self._slot + BEGUN] = done + 1
        with self._fence:
            pass
        if words[SEQUENCE_AT] == self._settled and proposal is None:
            return None
        return self._look(done, proposal)

    def _look(self, done: int, proposal: RankProposal | None) -> RankDecision | None:
        """What arriving means when there is a decision, one is being made, or we want one."""
        with self._fence:
            pass
        # Each conclusion is drawn from one load: the next one may find that another rank has begun to decide.
        sequence = self._settled_sequence()
        if (
            sequence == self._settled
            and proposal is not None
            and self._can_be_met(proposal)
            and self._all_acknowledged()
        ):
            self._try_to_decide(done, proposal)
            sequence = self._settled_sequence()
        # Even and not ours: a decision that we have not acknowledged, so nobody changes the board before we do.
        if sequence == self._settled or done < self._words[STEP_AT]:
            return None
        return self._acknowledge()

    def _acknowledge(self) -> RankDecision:
        words = self._words
        length = words[LENGTH_AT]
        reason = bytes(words[REASON_AT:HEADER].cast("B")[:length]).decode("utf-8", "replace")
        decision = RankDecision(words[SEQUENCE_AT] // 2, words[STEP_AT], Action(words[ACTION_AT]), reason)
        self._settled = words[SEQUENCE_AT]
        words[self._slot + ACKED] = self._settled
        return decision

    # --------------------------------------------------------------------------------------------------------- decide

    def _others(self) -> Iterator[int]:
        """Where the slots begin of the other ranks that still have steps to do."""
        for rank in range(self.world):
            at = HEADER + SLOT * rank
            if rank != self.rank and self._words[at + STATE] < FINISHED:
                yield at

    def _can_be_met(self, proposal: RankProposal) -> bool:
        """Whether all ranks can do it: no save is whole without those that have finished, except the one at the end."""
        if proposal.action is not Action.SAVE:
            return True
        return all(self._words[HEADER + SLOT * rank + STATE] < FINISHED for rank in range(self.world))

    def _all_acknowledged(self) -> bool:
        """Whether nobody has still to act on the last decision, or to arrive for the first time."""
        words = self._words
        late = [at for at in self._others() if words[at + ACKED] != self._settled or words[at + BEGUN] == NOT_YET]
        if not late:
            return True
        now = time.monotonic()
        if now - self._looked_at < LIVENESS_S:
            return False
        self._looked_at = now
        return all(self._is_gone(at) for at in late)

    def _is_gone(self, at: int) -> bool:
        return self._board.process((at - HEADER) // SLOT).is_gone()

    def _try_to_decide(self, done: int, proposal: RankProposal) -> None:
        """Decide if nobody else does at this moment; what comes of it stands on the board afterwards."""
        if not self._lock():
            return
        words, before = self._words, self._settled
        try:
            if words[SEQUENCE_AT] == before and self._all_acknowledged():
                words[SEQUENCE_AT] = before + 1
                self._write(proposal, self._read_the_farthest(done))
                before += 2
        finally:
            # Also when something is raised in here (a second Ctrl-C): without a decision everything is as it was.
            if words[SEQUENCE_AT] % 2:
                words[SEQUENCE_AT] = before
            self._unlock()

    def _read_the_farthest(self, done: int) -> int:
        """The farthest step that anybody has begun, once every store that was on its way has arrived.

        The fence of the hot path is complete on x86; on processors where taking a lock orders less, the pause makes up
        for it: a store reaches memory within microseconds, and a rank that loaded the even sequence did its store
        before that. Decisions are rare, so half a millisecond is nothing.
        """
        time.sleep(SETTLE_S)
        words = self._words
        begun = [(words[at + BEGUN], at) for at in self._others()]
        # A dead rank's step counts for nothing: nobody will ever complete it.
        return max([done, *(step for step, at in begun if step > done and not self._is_gone(at))])

    def _write(self, proposal: RankProposal, step: int) -> None:
        words = self._words
        reason = shorten(proposal.reason).encode()
        words[STEP_AT], words[ACTION_AT], words[DECIDER_AT] = step, int(proposal.action), self.rank
        words[LENGTH_AT] = len(reason)
        words[REASON_AT:HEADER].cast("B")[: len(reason)] = reason
        with self._fence:
            pass

    def _settled_sequence(self) -> int:
        """The sequence when it is even: waits while somebody decides, which takes about a millisecond.

        Raises:
            AgreementLost: somebody decides and stands still.
        """
        words, end, pause_s = self._words, time.monotonic() + self._timeout_s, _FIRST_PAUSE_S
        while True:
            sequence = words[SEQUENCE_AT]
            if sequence % 2 == 0:
                return sequence
            if self._lock():
                # Odd while nobody holds the lock: whoever made it odd died, and nobody has acted on it.
                if words[SEQUENCE_AT] % 2:
                    words[SEQUENCE_AT] -= 1
                self._unlock()
                continue
            if time.monotonic() >= end:
                raise AgreementLost(
                    f"rank {self.rank} waited {self._timeout_s:.0f} s for a rank that stands still in a decision",
                    "look which rank is stopped (state T in ps) or hangs",
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _lock(self) -> bool:
        """Take the decider's lock or do not; a record lock and not flock: forked loader workers do not inherit it."""
        try:
            fcntl.lockf(self._board.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _unlock(self) -> None:
        fcntl.lockf(self._board.descriptor, fcntl.LOCK_UN)

    # --------------------------------------------------------------------------------------------------- come and go

    def _meet(self, path: str, end: float) -> None:
        """Find the board of this launch, whose maker lives, and take our slot in it."""
        while True:
            board = board_files.attach_board(path)
            if board is not None:
                if self._is_ours_to_join(board):
                    board.claim(self.rank)
                    self._board = board
                    if self._await_everybody(end) and board.is_current():
                        return
                board.close()
            if time.monotonic() >= end:
                raise AgreementLost(
                    f"rank {self.rank} waited {self._timeout_s:.0f} s for rank 0 at {path}",
                    "look at the output of rank 0; ranks that do not share this directory need LOCAL_WORLD_SIZE set",
                )
            time.sleep(_LONGEST_PAUSE_S)

    def _is_ours_to_join(self, board: board_files.MappedBoard) -> bool:
        """Of this launch: its maker lives, and nobody is in our place (an earlier launch of the same key has one)."""
        return (
            board.is_sound(self.world)
            and board.state(self.rank) == EMPTY
            and not board.creator().is_gone()
            and board.is_current()
        )

    def _await_everybody(self, end: float) -> bool:
        """Wait until no slot is empty; False when the board was replaced or its maker died meanwhile."""
        board, pause_s = self._board, _FIRST_PAUSE_S
        while missing := [rank for rank in range(self.world) if board.state(rank) == EMPTY]:
            if self.rank and (not board.is_current() or board.creator().is_gone()):
                return False
            if time.monotonic() >= end:
                names = f"rank{'s' if len(missing) > 1 else ''}: {', '.join(map(str, missing[:8]))}"
                self._give_up()
                raise AgreementLost(
                    f"rank {self.rank} waited {self._timeout_s:.0f} s in vain for {len(missing)} {names}",
                    "look at their output; all ranks must make the same calls in the same order",
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        return True

    def _give_up(self) -> None:
        if self.rank == 0:
            self._board.remove()
        self._board.close()

    def finish(self, done: int) -> None:
        """As `Agreement.finish`."""
        self._words[self._slot + BEGUN] = done
        self._words[self._slot + STATE] = FINISHED

    def publish(self, name: str, value: bytes) -> None:
        """As `Agreement.publish`.

        Raises:
            OSError: the value could not be written.
        """
        files.commit(self._value_path(name), value, durable=False)

    def wait_for(self, name: str, timeout_s: float) -> bytes:
        """As `Agreement.wait_for`; ends at once when nobody is left who could publish."""
        path, begin, pause_s = self._value_path(name), time.monotonic(), _FIRST_PAUSE_S
        end = begin + timeout_s
        while True:
            # Asked before the look: who publishes and leaves in between has published.
            nobody = self._everybody_left()
            try:
                return files.read_bytes(path)
            except FileNotFoundError:
                if nobody or time.monotonic() >= end:
                    raise nobody_published(self.rank, name, time.monotonic() - begin) from None
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _everybody_left(self) -> bool:
        ranks = [rank for rank in range(self.world) if rank != self.rank]
        return all(self._has_left(rank) for rank in ranks)

    def _has_left(self, rank: int) -> bool:
        return self._board.state(rank) == CLOSED or self._board.process(rank).is_gone()

    def _value_path(self, name: str) -> str:
        return f"{self._board.path}.{self.token}.{hashlib.sha256(name.encode()).hexdigest()[:16]}"

    def close(self) -> None:
        """As `Agreement.close`; the last to leave removes the board and what was published."""
        if not hasattr(self, "_words"):
            return
        self._words[self._slot + STATE] = CLOSED
        with self._fence:
            pass
        if self._everybody_left():
            self._board.remove()
        del self._words
        self._board.close()


assert HEADER - REASON_AT >= 104 // WORD, "the longest reason fits the header"
