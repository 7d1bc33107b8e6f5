"""What ``holdfast teardown`` does between looking and telling: it shows, asks, and uses the one approval."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from holdfast.desk.connect import open_box
from holdfast.desk.profiles.read import profile_of_place, today
from holdfast.desk.teardown.approvals import list_of_rent, read_approvals, refuse_used
from holdfast.desk.teardown.gate import ApprovedAct, Gate, Wish, approve, look, verify
from holdfast.desk.teardown.gone import check_gone, list_expected
from holdfast.desk.teardown.last_check import STOPPED, THERE
from holdfast.desk.teardown.look import look_at, prove_home
from holdfast.model.errors import PlaceError, PreflightFailed, ResourceBusy, UsageError

from .consent import tell_nobody
from .render import note, print_record
from .render.teardown import print_approved, print_check, print_gate

if TYPE_CHECKING:
    from holdfast.model.place import Place
    from holdfast.model.profile import Profile


def teardown(wish: Wish, code_at: Sequence[str], approval: str | None, *, dry_run: bool, as_json: bool) -> int:
    """Look, and where all holds have the act approved and tell it; the exit code.

    Raises:
        HoldfastError: there is nothing to look at, or the approval is no good.
    """
    if approval is not None:
        refuse_used(read_approvals(wish.place.name), approval)
    profile = profile_of_place(wish.place.profile, wish.place.name)
    asks = approval is None and not dry_run and not as_json and sys.stdin is not None and sys.stdin.isatty()
    gate = _look(wish, profile, code_at)
    if asks and gate.plan is not None and gate.plan.irreversible and _is_facts_alone(gate):
        wish = verify(gate, wish, [key for key in gate.stale if _ask_fact(gate.stale[key])])
        gate = _look(wish, profile, code_at)
    if not as_json:
        print_gate(gate, dry_run=dry_run)
    if dry_run or not gate.open or gate.plan is None:
        if as_json:
            print_record(gate)
        return 0 if gate.open else PreflightFailed.exit_code
    if approval is None and not asks:
        raise UsageError(
            f"nothing was approved: {tell_nobody(as_json=as_json)}",
            hint="a person looks at the plan: the same command with --dry-run; with a yes it takes the plan's hash: "
            "the same command with --approve HASH",
        )
    if approval is None:
        gate = _ask_person(gate, wish, profile, code_at)
    used = approve(gate, approval)
    assert gate.plan is not None, "it was approved"
    print_record(ApprovedAct(used, gate.plan)) if as_json else print_approved(gate, used)
    return 0


def _look(wish: Wish, profile: Profile | None, code_at: Sequence[str]) -> Gate:
    directories = [os.path.abspath(directory) for directory in (*code_at, os.curdir)]
    looks = partial(
        look_at,
        wish.place,
        open_box=open_box,
        prove_home=prove_home,
        code_at=directories,
        only=wish.run_id,
        left=tuple(wish.left),
    )
    return look(wish, profile, looks, today())


def _is_facts_alone(gate: Gate) -> bool:
    """Whether nothing is missing but that old facts are verified again."""
    return bool(gate.stale) and [each.name for each in gate.conditions if each.holds != "yes"] == [
        "facts of the profile"
    ]


def _ask_fact(words: str) -> bool:
    return click.confirm(
        f"{words}\nHave you looked at the provider's pages just now, and is it still so?", default=False
    )


def _ask_person(gate: Gate, wish: Wish, profile: Profile | None, code_at: Sequence[str]) -> Gate:
    """Have a person approve the act by typing the place's name; the gate as it is then.

    Raises:
        UsageError: something else was typed.
        PreflightFailed: the place is not as it was shown any more.
    """
    assert gate.plan is not None
    act = f"{gate.plan.verb} of {gate.place} ({gate.plan.host})"
    typed = click.prompt(f"To approve the {act}, once, type the place's name", default="", show_default=False)
    if typed.strip() != gate.place:
        raise UsageError("nothing was approved: that is not the place's name")
    again = _look(wish, profile, code_at)
    if again.plan_hash != gate.plan_hash:
        raise PreflightFailed(
            f"{gate.place} is not as you have just seen it any more", hint="nothing was approved; look again"
        )
    return again


def check(place: Place, limit_s: float, *, as_json: bool) -> int:
    """Ask the provider's status whether the machine is gone; the exit code.

    Raises:
        PreflightFailed: there is none to ask.
    """
    known = list_of_rent(place)
    act = known[-1] if known else None
    found = check_gone(place, act, limit_s, tell=note)
    is_over = found.state in list_expected(act)
    print_record(found) if as_json else print_check(place.name, found, is_over=is_over)
    if is_over:
        return 0
    return ResourceBusy.exit_code if found.state in (THERE, STOPPED) else PlaceError.exit_code
