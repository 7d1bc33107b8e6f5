"""What a pull came to, for people."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from holdfast.core.control_characters import clean
from holdfast.model.receipt import LOADED, READ, UNTESTED
from holdfast.model.units import format_bytes, format_count

from .results import describe_mended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.desk.pull import Pulled, PullPlan
    from holdfast.model.receipt import LeftOut, Tried
    from holdfast.transfer.pull.verify import VerifiedCopy

MOST_SHOWN = 20


def print_plan(plan: PullPlan) -> None:
    """What would be pulled."""
    name = f"{plan.place}:{plan.run_id}"
    rest = f"{_count(plan.lacking)}, {format_bytes(plan.sent)}" if plan.lacking else "nothing"
    print(
        f"{name}: {rest} of {_count(plan.files)}, {format_bytes(plan.bytes)}, would come into {clean(plan.directory)}"
    )
    if plan.live:
        print("it has not ended: the copy would be that of a moment")
    _print_left_out(plan.left_out)
    print("nothing was pulled (dry run)")


def print_pulled(done: Pulled) -> None:
    """What was pulled, how it was tried, and what it is not."""
    receipt = done.receipt
    came = f"{_count(done.received)}, {format_bytes(done.sent)} came" if done.received else "all of it was here already"
    again = f" in {done.again + 1} tries" if done.again else ""
    print(f"{clean(done.directory)}: {_count(done.files)}, {format_bytes(done.bytes)}, proven; {came}{again}")
    if done.mended:
        print(f"mended: {clean(describe_mended(done.mended))}")
    print(f"tried by loading: {_describe_tried(receipt.tried)}")
    if receipt.checkpoint:
        print(f"newest checkpoint that loads: {clean(receipt.checkpoint)}")
    if receipt.untried is not None:
        how = "not tried" if receipt.untried.how == UNTESTED else "damaged, and accepted as it is"
        print(f"newest checkpoint, {how}: {clean(receipt.untried.path)}: {clean(receipt.untried.why)}")
    for one in receipt.damaged[:MOST_SHOWN]:
        print(f"damaged: {clean(one.path)}: {clean(one.why)}")
    _print_more(len(receipt.damaged))
    if receipt.damaged:
        print("what is right as it is: the same command with --accept PATH")
    for one in receipt.accepted[:MOST_SHOWN]:
        print(f"accepted as it is: {clean(one.path)}: {clean(one.why)}")
    _print_more(len(receipt.accepted))
    for words in _list_untested(receipt.tried):
        print(f"not load-tested: {words}")
    _print_left_out(receipt.left_out)
    if receipt.live:
        print(
            f"{done.place}:{done.run_id} has not ended: this is a copy of {receipt.made_at}; pull it again afterwards"
        )


def print_verified(done: VerifiedCopy) -> None:
    """Whether a copy is what was pulled, and what of it is not."""
    bad = len(done.damaged)
    state = f"{bad} of them not what was pulled" if bad else "every byte is what was pulled"
    print(clean(f"{done.directory}: {_count(done.files)}, {format_bytes(done.bytes)}, {state} at {done.pulled_at}"))
    for one in done.damaged[:MOST_SHOWN]:
        print(f"damaged: {clean(one.path)}: {clean(one.why)}")
    _print_more(bad)
    if bad:
        again = f"holdfast pull {done.place}:{done.run_id} {shlex.quote(done.directory)}"
        print(f"while the run is there, this mends it: {clean(again)}")


def _describe_tried(tried: Sequence[Tried]) -> str:
    words = []
    for how, what in ((LOADED, "loaded"), (READ, "read, not all of their values")):
        count = sum(one.how == how for one in tried)
        words += [f"{count} {what}"] if count else []
    return ", ".join(words) or "no file is of a format that is known here"


def _list_untested(tried: Sequence[Tried]) -> list[str]:
    """A line for each reason."""
    kinds: dict[str, list[str]] = {}
    for one in tried:
        if one.how == UNTESTED:
            count, _, why = one.why.partition(": ")
            kinds.setdefault(why, []).append(f"{clean(one.path)} ({count})")
    return [f"{', '.join(names[:MOST_SHOWN])}: {clean(why)}" for why, names in kinds.items()]


def _print_left_out(left_out: Sequence[LeftOut]) -> None:
    for one in left_out[:MOST_SHOWN]:
        print(f"not pulled: {clean(one.path)}: {clean(one.why)}")
    _print_more(len(left_out))


def _print_more(count: int) -> None:
    if count > MOST_SHOWN:
        print(f"and {count - MOST_SHOWN} more (--json has them)")


def _count(files: int) -> str:
    return format_count(files, "file")
