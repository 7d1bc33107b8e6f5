"""The gate: everything that must hold before a place is ended, the plan of the act, and its one approval."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from holdfast.core.profile.stale import stale_facts
from holdfast.core.profile.statements import state_fact
from holdfast.core.profile.survive import survives
from holdfast.desk.author import name_author
from holdfast.host.clock import utc_now
from holdfast.model.errors import NoSuchName, NoSuchRun, PreflightFailed
from holdfast.model.place import LOCAL, Place
from holdfast.model.profile import EndVerb, Profile
from holdfast.model.record import field, record, replace
from holdfast.model.teardown import Approval

from .approvals import read_approvals, refuse_used, use_approval
from .conditions import NO, YES, Condition, Seen, judge, name_untried
from .gone import ask_status
from .last_check import GONE, STOPPED, THERE
from .plan import Plan, build_plan, choose_verb, list_billed, list_rested_on

GOOD_FOR = 2
"""Days that the hash of a plan may be used to approve it, that of the look included."""
LONGEST_KNOWN = 60
"""For so many days it is said of an old one that it is old."""


@record
class Wish:
    """What was asked for. `run_id` None: the whole place; `left` are runs that are left behind, with the reason.

    `verified` are old facts and checkpoints (RUN/PATH) that a person has looked at.
    """

    place: Place
    run_id: str | None = None
    verb: str | None = None
    left: dict[str, str] = field(default_factory=dict)
    verified: tuple[str, ...] = ()


@record
class Gate:
    """One look. `plan` is the act that may be approved when it is `open`; None where there is nothing to end.

    `word` says in words why there is nothing to end. `stale` are old facts that the act rests on, by key, for people.
    """

    place: str
    at: str
    open: bool
    run_id: str | None = None
    conditions: tuple[Condition, ...] = ()
    plan: Plan | None = None
    plan_hash: str = ""
    word: str = ""
    stale: dict[str, str] = field(default_factory=dict)


@record
class ApprovedAct:
    """An act that is approved, and on record as used: what is to be typed for it stands in `plan`."""

    approval: Approval
    plan: Plan


def look(wish: Wish, profile: Profile | None, look_at: Callable[[], Seen], today: str) -> Gate:
    """Look at the place, and judge.

    Raises:
        UsageError: the profile has no such verb, or several; or a run that is left behind is not there.
        PreflightFailed: it has a meter, and how it is ended is not known.
        StorageError: what was approved before cannot be read.
    """
    place = wish.place
    if wish.run_id is not None:
        return _look_at_run(wish, look_at)
    if place.name == LOCAL or (profile is not None and profile.metered == "none" and not profile.verbs):
        return _nothing_to_stop(place)
    verb = choose_verb(_require_verbs(place, profile), wish.verb, place.name)
    assert profile is not None
    _refuse_unknown_facts(wish, profile, verb)
    known = read_approvals(place.name)
    seen = look_at()
    _refuse_unknown(wish, seen)
    _refuse_unknown_checkpoints(wish, seen)
    stale = {
        key: state_fact(profile, key, fact)
        for key, fact in stale_facts(profile, today, list_rested_on(profile, verb)).items()
    }
    conditions = (
        *(_name_verb(each, place, verb) for each in judge(place, seen, wish.left, whole=True, verified=wish.verified)),
        *_judge_copies(place, profile, verb, seen),
        *_judge_status(place, seen),
        *_judge_profile(place, profile, verb, stale, wish.verified),
    )
    plan = build_plan(
        place,
        profile,
        verb,
        number=known.number,
        day=today,
        receipts={run_id: proof.receipt.roster for run_id, proof in seen.proofs.items() if proof.receipt is not None},
        left=wish.left,
        verified=[*(key for key in stale if is_verified(key, wish.verified)), *_list_checkpoints(wish)],
    )
    is_open = all(each.holds == YES for each in conditions)
    return Gate(
        place.name,
        utc_now(),
        is_open,
        conditions=conditions,
        plan=plan,
        plan_hash=plan.hash if is_open else "",
        stale=stale,
    )


def _look_at_run(wish: Wish, look_at: Callable[[], Seen]) -> Gate:
    """The conditions of one run: whether what it made may be removed there."""
    seen = look_at()
    _refuse_unknown_checkpoints(wish, seen)
    name, code = f"{wish.place.name}:{wish.run_id}", f"holdfast teardown {wish.place.name} --code"
    conditions = tuple(
        replace(each, command=each.command.replace(code, f"holdfast teardown {name} --code"))
        for each in judge(wish.place, seen, {}, whole=False, verified=wish.verified)
    )
    is_open = all(each.holds == YES for each in conditions)
    word = f"{name} is home, proven; one run ends no meter" if is_open else ""
    return Gate(wish.place.name, utc_now(), is_open, wish.run_id, conditions, word=word)


def _nothing_to_stop(place: Place) -> Gate:
    name = "this machine" if place.name == LOCAL else place.name
    return Gate(
        place.name,
        utc_now(),
        open=True,
        word=f"nothing to stop: {name} has no meter. What of a run is only there: holdfast teardown {place.name}:RUN",
    )


def _require_verbs(place: Place, profile: Profile | None) -> Profile:
    if profile is not None and profile.verbs:
        return profile
    if place.rent is None and profile is None:
        raise PreflightFailed(
            f"what kind of machine {place.name} is, and so how it is ended, is not known: it has no profile",
            hint=_tell_profile(place),
        )
    name = "" if profile is None else profile.name
    raise PreflightFailed(
        f"{place.name} is metered, and {f'profile {name} has no verb' if name else 'it has no profile'} that ends it",
        hint=_tell_profile(place),
    )


def _tell_profile(place: Place) -> str:
    """How a place gets a profile: by the command where that says all of it, else in the file."""
    lists = "`holdfast profile ls` lists them"
    said = Place(place.name, place.kind, place.host, place.port, configured=place.configured)
    if place.host is None or replace(place, profile="", rent=None) != said:
        return f'set profile = "..." in [{place.name}] of places.toml; {lists}'
    port = "" if place.port is None else f" --port {place.port}"
    return f"holdfast place add {place.name} {place.host}{port} --profile PROFILE --replace; {lists}"


def _refuse_unknown(wish: Wish, seen: Seen) -> None:
    known = {*(run.run_id for run in seen.runs), *seen.vanished}
    for run_id in wish.left:
        if not seen.unseen and run_id not in known:
            raise NoSuchRun(f"--leave {run_id}: {wish.place.name} has no such run", hint="write its whole id")


def _refuse_unknown_facts(wish: Wish, profile: Profile, verb: EndVerb) -> None:
    rested_on = list_rested_on(profile, verb)
    for each in wish.verified:
        if "/" not in each and not any(
            is_verified(key, (each,)) for key in ("verbs", "tiers", *profile.facts, *rested_on)
        ):
            raise NoSuchName(
                f"--verified {each}: the profile {profile.name} has no such fact",
                hint=f"{verb.name} rests on {', '.join(rested_on)}; the first word stands for all of its kind",
            )


def _name_verb(condition: Condition, place: Place, verb: EndVerb) -> Condition:
    """With the verb in a command that looks again: without it one of several verbs would be asked for."""
    again = f"holdfast teardown {place.name} --"
    command = condition.command.replace(again, f"holdfast teardown {place.name} --verb {verb.name} --")
    return replace(condition, command=command)


def _list_checkpoints(wish: Wish) -> list[str]:
    return [each for each in wish.verified if "/" in each]


def _refuse_unknown_checkpoints(wish: Wish, seen: Seen) -> None:
    known = name_untried(seen, seen.runs)
    for each in _list_checkpoints(wish):
        if not seen.unseen and each not in known:
            words = f"those are: {', '.join(list(known)[:3])}" if known else "there is none: leave --verified out"
            raise NoSuchName(f"--verified {each}: this is no newest checkpoint that is in doubt", hint=words)


def _judge_status(place: Place, seen: Seen) -> Iterator[Condition]:
    """Where a machine that answers is called gone, the status is that of another one: nobody could be told by it."""
    if seen.unseen or place.rent is None or not (place.rent.status_command or place.rent.status_url):
        return
    found = ask_status(place.rent)
    if found.state in (GONE, STOPPED):
        yield Condition(
            "its status",
            NO,
            f"{place.name} answers, and its status says that it is {found.state}: {found.seen}",
            f"mend status_command or status_url in [{place.name}.rent] of places.toml: it asks about another machine",
        )
        return
    words = found.seen if found.state == THERE else f"cannot be told now, nor may --check be able to: {found.seen}"
    yield Condition("its status", YES, words)


def _judge_copies(place: Place, profile: Profile, verb: EndVerb, seen: Seen) -> Iterator[Condition]:
    """Where the place is this machine, a copy ends with it, but for storage that outlives the act."""
    if place.kind != LOCAL:
        return
    for run_id, proof in seen.proofs.items():
        if proof.receipt is None:
            continue
        where = proof.receipt.directory
        found = survives(
            profile, where, verb.name, lambda path: os.path.realpath(os.path.expandvars(os.path.expanduser(path)))
        )
        if not found.proven:
            why = found.why or f"its tier {found.tier} does not outlive {verb.name}"
            yield Condition(
                f"copy: {run_id}",
                NO,
                f"{where} is on the very machine that ends: {why}",
                f"holdfast pull {place.name}:{run_id} DIR   (DIR on storage that outlives {verb.name}, as the profile "
                f"{profile.name} or one of your own says: holdfast's docs/profiles.md; or pull from another machine)",
            )


def _judge_profile(
    place: Place, profile: Profile, verb: EndVerb, stale: Mapping[str, str], verified: Sequence[str]
) -> tuple[Condition, ...]:
    billed = list_billed(place, profile, verb)
    listed = Condition("what bills on", YES, "; ".join(billed) or "nothing that is known")
    open_facts = [key for key in stale if not is_verified(key, verified)]
    if not open_facts or not verb.irreversible:
        words = f"{len(stale)} old, verified again" if stale and not open_facts else "none that it rests on is old"
        words = f"old: {', '.join(open_facts)}" if open_facts else words
        return listed, Condition("facts of the profile", YES, words)
    return listed, Condition(
        "facts of the profile",
        NO,
        "older than six months:" + "".join(f"\n{stale[key]}" for key in open_facts),
        f"look at the provider's pages, then: holdfast profile verify {profile.name} {' '.join(open_facts)}",
    )


def is_verified(key: str, verified: Sequence[str]) -> bool:
    """Whether a person said so of a fact; a key stands for all below it (``tiers`` for ``tiers.data``)."""
    return any(f"{key}.".startswith(f"{each}.") for each in verified)


def approve(gate: Gate, stated: str | None) -> Approval:
    """Use the one approval of this plan; it is on the disk on return, and only then the verb may be told.

    `stated` is the hash that was approved by another command, good for the day of the look (UTC) and the next one;
    None: a person has just typed the place's name.

    Raises:
        PreflightFailed: it was used before, is too old, or is for another plan.
        StorageError: it cannot be written.
    """
    plan = gate.plan
    assert plan is not None
    assert gate.open
    if stated is not None:
        _refuse_other(gate, plan, stated)
    approval = Approval(
        plan=stated or gate.plan_hash,
        place=plan.place,
        host=plan.host,
        verb=plan.verb,
        at=utc_now(),
        by=name_author(),
        stops_meter=plan.stops_meter,
        irreversible=plan.irreversible,
        left=plan.left,
        verified=plan.verified,
        receipts=plan.receipts,
    )
    use_approval(approval, plan.number)
    return approval


def _refuse_other(gate: Gate, plan: Plan, stated: str) -> None:
    """Refuse a hash that is not that of the plan as it is, of today or yesterday."""
    refuse_used(read_approvals(gate.place), stated)
    today = dt.date.fromisoformat(plan.day)
    days = [(today - dt.timedelta(days=age)).isoformat() for age in range(LONGEST_KNOWN)]
    made_on = next((day for day in days if replace(plan, day=day).hash == stated), None)
    if made_on in days[:GOOD_FOR]:
        return
    why = f"is for another plan: that of {plan.verb} of {gate.place}, as it is now, is {gate.plan_hash}"
    if made_on is not None:
        why = f"is of {made_on}, and one is good for that day and the next"
    raise PreflightFailed(
        f"the approval {stated[:64]} {why}",
        hint="look at it first: the same command with --dry-run in place of --approve",
    )


def verify(gate: Gate, wish: Wish, keys: Sequence[str]) -> Wish:
    """The wish with facts that a person has just verified again."""
    return replace(wish, verified=(*wish.verified, *(key for key in keys if key in gate.stale)))
