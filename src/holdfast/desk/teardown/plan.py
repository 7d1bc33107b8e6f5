"""What ending a place would be, by its profile: the provider's verb, what it destroys, what bills on. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from holdfast.core.digest import sha256_hex
from holdfast.core.near import find_near
from holdfast.model import wire
from holdfast.model.errors import NoSuchName, UsageError
from holdfast.model.place import Place
from holdfast.model.profile import EndVerb, Profile
from holdfast.model.record import field, record

KEEP = "keep storage that lasts for 1 to 3 months: results are asked for later than one thinks"


@record
class Plan:
    """One act, as a person approves it. `how` is what to do, word for word; `steps` come behind it, in their order.

    `host` is the machine with its port: several of one provider may share an address. `day` is the one on which it was
    looked at (UTC). `number` is that of approvals before (`approvals`). `receipts` are the rosters of the runs that are
    home, `left` runs that are left behind with the reason, `verified` facts that a person says to have verified again.
    """

    place: str
    host: str
    verb: str
    how: str
    irreversible: bool
    stops_meter: bool | None
    number: int
    day: str = ""
    destroys: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    still_bills: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    receipts: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    verified: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """What an approval names: another act, another state of the runs, or another time has another."""
        return sha256_hex(json.dumps(wire.encode(self), sort_keys=True).encode())[:16]


def choose_verb(profile: Profile, asked: str | None, place: str) -> EndVerb:
    """The verb of this name; without one the only one that there is.

    Raises:
        UsageError: there is no such verb, or several; all are named.
    """
    by_name = {verb.name: verb for verb in profile.verbs}
    if asked is None and len(by_name) == 1:
        return profile.verbs[0]
    known = "; ".join(f"{verb.name} ({_tell_effect(verb)})" for verb in profile.verbs)
    meant = profile.meter_stop or next(iter(by_name))
    if asked is None:
        raise UsageError(
            f"{place} can be ended in {len(by_name)} ways: {known}",
            hint=f"name one: holdfast teardown {place} --verb {meant}",
        )
    if asked not in by_name:
        near = find_near(asked, by_name) or meant
        hint = f"holdfast teardown {place} --verb {near}"
        raise NoSuchName(f"profile {profile.name} has no verb {asked!r}; it has {known}", hint=hint)
    return by_name[asked]


def _tell_effect(verb: EndVerb) -> str:
    meter = {True: "stops the meter", False: "the meter goes on", None: "whether the meter stops is not known"}
    return f"{meter[verb.stops_meter]}, {'cannot' if verb.irreversible else 'can'} be taken back"


def build_plan(
    place: Place,
    profile: Profile,
    verb: EndVerb,
    *,
    number: int,
    day: str,
    receipts: Mapping[str, str],
    left: Mapping[str, str],
    verified: Sequence[str],
) -> Plan:
    """The act `verb` at a place, with all that goes on being billed after it."""
    host = name_machine(place)
    billed = list_billed(place, profile, verb)
    return Plan(
        place=place.name,
        host=host,
        verb=verb.name,
        how=verb.how.replace("{host}", host).replace("{place}", place.name),
        irreversible=verb.irreversible,
        stops_meter=verb.stops_meter,
        number=number,
        day=day,
        destroys=verb.destroys,
        keeps=verb.keeps,
        still_bills=billed,
        steps=(
            _tell_check(place),
            *(f"later, each on its own: {each}" for each in billed),
            *((KEEP,) if billed else ()),
        ),
        receipts=dict(sorted(receipts.items())),
        left=dict(sorted(left.items())),
        verified=tuple(sorted(verified)),
    )


def _tell_check(place: Place) -> str:
    """How it is seen that the act was done."""
    rent = place.rent
    if rent is not None and (rent.status_command or rent.status_url):
        return f"holdfast teardown {place.name} --check"
    where = f"[{place.name}.rent] has no status_command that `holdfast teardown --check` could ask"
    return f"see on the provider's own page that it was done: {where}"


def name_machine(place: Place) -> str:
    """Which machine a place is at present: who is asked by ssh, and at which port."""
    host = place.host or "this machine"
    return host if place.port is None else f"{host} port {place.port}"


def list_billed(place: Place, profile: Profile, verb: EndVerb) -> tuple[str, ...]:
    """What goes on being billed after a verb, each on its own; storage, which is given up last, at the end."""
    also = () if place.rent is None else place.rent.also
    tiers = [
        f"storage {tier.name} ({', '.join(tier.paths)})" for tier in profile.tiers if verb.name in tier.bills_after
    ]
    return tuple(dict.fromkeys([*also, *verb.still_bills, *tiers]))


def list_rested_on(profile: Profile, verb: EndVerb) -> tuple[str, ...]:
    """The keys of the facts that ending the place by `verb` rests on: the verb itself, and what survives it."""
    return (f"verbs.{verb.name}", *(f"tiers.{tier.name}" for tier in profile.tiers))
