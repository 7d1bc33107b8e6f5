"""From a draft at the desk to one run at a place, or jobs of its queue, whatever breaks on the way.

The intent is on the desk's disk before anything is sent; the code is pushed and proven; then the order is sent, and
sent again under the same run id for as long as no answer comes. When that pauses, the same command goes on with it.
A run that the place has taken is never ordered anew, and what the place refuses is not tried again.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, TypeVar

from holdfast.core.digest import sha256_hex
from holdfast.desk.runs.registry import read_sightings, record_taken
from holdfast.model import wire
from holdfast.model.errors import (
    HoldfastError,
    InternalError,
    PlaceError,
    Refused,
    ResourceBusy,
    StorageError,
    Taken,
    TooLate,
    Unreachable,
    UsageError,
)
from holdfast.model.record import record
from holdfast.model.run import Ended
from holdfast.model.scheduler import SCHEDULER_AWAY
from holdfast.platforms.base import OrderResult
from holdfast.transfer.code.push import push_tree

from .build import build_order, find_profile
from .journal import JournalEntry, OrderKind, Step, claim_order, find_open, has_taken, note_step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.model.place import Place
    from holdfast.platforms.base import Platform
    from holdfast.transfer.box import Box
    from holdfast.transfer.code.tree import CodeTree

    from .build import Draft
    from .journal import ClaimedOrder, JournalEntry

LONGEST_REASON = 1000
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Between tries after a lost link: half a minute in all, which outlives a change of networks, not a closed lid."""
PATIENCE_S = sum(PAUSES_S)
"""So long after the first try that failed no other is begun: a place that hangs takes its time for each."""


ONCE = {OrderKind.RUN: "as one run", OrderKind.JOBS: "and no job is there twice"}
Answer = TypeVar("Answer")


@record
class Asked:
    """What is ordered, as the journal knows it: by its hash and its code; the tree goes along where there is one."""

    what: OrderKind
    name: str
    sha256: str
    tree_hash: str
    tree: CodeTree | None


def submit_draft(
    draft: Draft,
    box: Box,
    platform: Platform,
    *,
    argv: Sequence[str],
    run_id: str | None,
    prove_s: float | None,
    tell: Callable[[str], None],
    pauses_s: Sequence[float] = PAUSES_S,
) -> OrderResult:
    """Have `draft` taken at the box's place, once; `tell` gets words for people on what happens meanwhile.

    Without `prove_s` the command follows the run to its end (`hold_order`): one that was cut off in it is gone on with.

    Raises:
        PlaceError: no answer so far; the same command finishes it.
        HoldfastError: it was not taken.
    """
    place = box.place

    def take(run_id: str, bundle: str) -> OrderResult:
        return platform.submit(build_order(draft, place, run_id=run_id, bundle=bundle, argv=argv), prove_s=prove_s)

    asked = Asked(OrderKind.RUN, draft.job.name, _hash_asked(draft.order_sha256, place), draft.tree_hash, draft.tree)
    answer = send_order(asked, box, take, run_id=run_id, tell=tell, pauses_s=pauses_s, followed=prove_s is None)
    started = answer.started
    if started is None:
        record_taken(place.name, answer.ref.run_id)
    else:
        state = started.state
        condition = state.outcome.value if isinstance(state, Ended) else type(state).__name__.lower()
        record_taken(place.name, answer.ref.run_id, condition, started.exit_code)
    return answer


def is_begun(draft: Draft, place: Place) -> bool:
    """Whether the same job was ordered at a place, and nothing or not the end of it was heard: it goes on there."""
    ended = frozenset(seen.run_id for seen in read_sightings(place.name) if seen.ended)
    return bool(find_open(place.name, _hash_asked(draft.order_sha256, place), draft.tree_hash, ended))


def send_order(
    asked: Asked,
    box: Box,
    take: Callable[[str, str], Answer],
    *,
    run_id: str | None,
    tell: Callable[[str], None],
    pauses_s: Sequence[float] = PAUSES_S,
    followed: bool = False,
) -> Answer:
    """Journal an order, push its code, and have ``take(id, bundle)`` send it until there is an answer; that answer.

    Raises:
        PlaceError: no answer so far; the same command finishes it.
        HoldfastError: it was not taken.
    """
    place, tree, tree_hash = box.place.name, asked.tree, asked.tree_hash
    ended = frozenset(seen.run_id for seen in read_sightings(place) if seen.ended)
    with claim_order(place, asked.name, asked.sha256, tree_hash, run_id=run_id, what=asked.what, ended=ended) as claim:
        if claim.begun is not None:
            tell(_say_resumed(claim.begun, place, asked.what))
        sent = _Attempts(claim, place, asked, tell, pauses_s)
        # A tree that an order was taken with is most likely there: the box says so if it is not, which saves a call.
        expected = has_taken(place, tree_hash)

        def send() -> Answer:
            facts = box.ensure()
            if asked.what is OrderKind.RUN and claim.begun is not None:
                _refuse_other_root(claim.begun, place, facts.root)
            if tree is not None and not expected:
                push_tree(box, tree)
            if not sent.order:
                run_dir = f"{facts.root}/{claim.run_id}" if asked.what is OrderKind.RUN else ""
                note_step(place, Step.SENT, claim.run_id, run_dir=run_dir)
                sent.order = True
            try:
                return take(claim.run_id, facts.bundle)
            except StorageError as error:
                if tree is None or error.details.get("code") != "absent":
                    raise
            push_tree(box, tree)
            return take(claim.run_id, facts.bundle)

        try:
            answer = sent.repeat(send)
        except HoldfastError as error:
            sent.note(error)
            raise
        except KeyboardInterrupt:
            tell(f"left alone: {sent.describe()}; the same command goes on with it, {ONCE[asked.what]}")
            raise
        try:
            run_dir = answer.ref.run_dir if isinstance(answer, OrderResult) else ""
            note_step(place, Step.FOLLOWED if followed else Step.TAKEN, claim.run_id, run_dir=run_dir)
        except StorageError as error:
            # It is there whatever our own disk says; asked again, the place answers the same.
            tell(f"{place}:{claim.run_id} was taken, which could not be noted here: {error}")
        return answer


def _refuse_other_root(begun: JournalEntry, place: str, root: str) -> None:
    """Refuse to ask for a run below another root than it was sent to: it would not be found, and begin once more.

    Raises:
        UsageError: says which root it was.
    """
    before = os.path.dirname(begun.run_dir)
    if before and before != root:
        raise UsageError(
            f"{place}:{begun.run_id} was ordered below {before}, and the runs root of {place} is {root} now; "
            "nothing was sent",
            hint=f"state `root` of [{place}] as it was until `holdfast ls --on {place}` shows it as over, or begin "
            "another one with --run-id",
        )


class _Attempts:
    """Sends until there is an answer, with pauses; `order` is True once the place may have seen the order itself.

    `lost`: an answer to it is missing, so the run may be there whatever is answered later.
    """

    def __init__(
        self, claim: ClaimedOrder, place: str, asked: Asked, tell: Callable[[str], None], pauses_s: Sequence[float]
    ) -> None:
        self._claim, self._place, self._asked = claim, place, asked
        self._name, self._what = f"{place}:{claim.run_id}", asked.what
        self._tell = tell
        self._pauses_s = tuple(pauses_s)
        self.order = False
        self.lost = claim.begun is not None and claim.begun.may_be_there

    def repeat(self, send: Callable[[], Answer]) -> Answer:
        failed_at: float | None = None
        for pause_s in self._pauses_s:
            try:
                return send()
            except PlaceError as error:
                self.lost = self.lost or self.order
                # A box that cannot be reached at all, or whose login never ends, is said at once: nobody waits for it.
                if isinstance(error, (Unreachable, TooLate)) and not self.order:
                    raise self._pause(error) from error
                if error.details.get("why") == SCHEDULER_AWAY:
                    # The place answers; what it asks has waited long enough itself.
                    raise self._pause(error) from error
                failed_at = time.monotonic() if failed_at is None else failed_at
                if time.monotonic() + pause_s > failed_at + PATIENCE_S:
                    raise self._pause(error) from error
                self._tell(f"{error}; asking again for {self._name} in {pause_s:g} s")
            time.sleep(pause_s)
        try:
            return send()
        except PlaceError as error:
            raise self._pause(error) from error

    def describe(self) -> str:
        """What is known of it while there is no answer."""
        begun = self._claim.begun
        if begun is not None and begun.step.was_taken:
            return f"{self._name} was taken at {begun.at}"
        does = "runs" if self._what is OrderKind.RUN else "was taken"
        return (
            f"whether {self._name} {does} is not known" if self.order or self.lost else f"{self._name} was not sent yet"
        )

    def note(self, error: HoldfastError) -> None:
        """Journal what a failure says of the order.

        A refusal does not prove that the place looked for the run. While an answer is missing the order stays open;
        only `Taken` settles it, because the place has compared the id with a run that is there.
        """
        place, run_id, message = self._place, self._claim.run_id, str(error)[:LONGEST_REASON]
        begun = self._claim.begun
        is_this = begun is None or begun.job_sha256 == self._asked.sha256
        if _may_pass(error):
            if self.order and not self.lost and _is_said_by(place, error):
                note_step(place, Step.SENT, run_id, message=message)
        elif self.lost and not (isinstance(error, Taken) and is_this):
            again = f"the same command asks again, {ONCE[self._what]}; so does holdfast reconcile {place}"
            self._tell(f"an answer is missing: {self.describe()}; {again}")
        elif begun is None or not begun.step.was_taken:
            note_step(place, Step.REFUSED, run_id, message=message)

    def _pause(self, error: PlaceError) -> PlaceError:
        hint = f"the same command goes on with it, {ONCE[self._what]}"
        return type(error)(
            f"{error}; {self.describe()}",
            hint=f"{hint}; {error.hint}" if error.hint else hint,
            details={**error.details, "run": self._name},
        )


def _hash_asked(job_sha256: str, place: Place) -> str:
    """The hash of what is wanted: a job in another environment is another order."""
    profile = find_profile(place)
    if not place.setup and place.env_from == "none" and profile is None:
        return job_sha256
    # As without it where the place has none: an order that an older holdfast sent is known again.
    besides = [] if profile is None else [wire.encode(profile)]
    return sha256_hex(json.dumps([job_sha256, place.setup, place.env_from, *besides], sort_keys=True).encode())


def _is_said_by(place: str, error: HoldfastError) -> bool:
    """Whether the place answered that it cannot take an order now; it is this desk that says its bundle was damaged."""
    return isinstance(error, (StorageError, ResourceBusy)) and error.details.get("place") == place


def _may_pass(error: HoldfastError) -> bool:
    """Whether the same order may still be taken: then it stays without an answer, and is asked about by its id."""
    return isinstance(error, (PlaceError, Refused, StorageError, ResourceBusy, InternalError))


def _say_resumed(begun: JournalEntry, place: str, what: OrderKind) -> str:
    name = f"{place}:{begun.run_id}"
    if begun.step is Step.FOLLOWED:
        return f"going on with {name}, which this command began at {begun.at}; --run-id begins another"
    if begun.step.is_answer:
        return f"{name} was {begun.step.value} at {begun.at}; asking for it again, which begins no second run"
    how = f"was not taken then ({begun.message})" if begun.message else "was not sent"
    if begun.may_be_there:
        how = "was sent and not answered"
    another = "; --run-id begins another" if what is OrderKind.RUN else ""
    return f"going on with {name}, which was ordered at {begun.at} and {how}{another}"
