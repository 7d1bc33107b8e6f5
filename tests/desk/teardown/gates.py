"""Places, profiles and looks for tests of the gate."""

from __future__ import annotations

from typing import Any

from holdfast.desk.teardown.conditions import Proof, RunAtPlace, Seen
from holdfast.model.place import Place, Rent
from holdfast.model.profile import EndVerb, Fact, Profile, Tier
from holdfast.model.receipt import Receipt
from holdfast.model.teardown import Approval, Remains

RUN = "20261120-100000-digits-0a1b"
OTHER = "20261120-110000-chars-0a1b"
PLACE = Place(
    "gpu1", host="me@gpu1.lab", rent=Rent(also=("address 203.0.113.7: 3 a month", "snapshot base: 2 a month"))
)
DESTROY = EndVerb(
    "destroy",
    "destroy the machine {host} of {place} in the console",
    stops_meter=True,
    irreversible=True,
    destroys=("the disk",),
    keeps=("the volume",),
    still_bills=("volume data",),
)
STOP = EndVerb("stop", "stop {host}", stops_meter=None, irreversible=False)
TODAY = "2026-11-23"


def approval(verb: EndVerb = DESTROY, **fields: Any) -> Approval:
    """What was approved of `PLACE`, with what the profile says of the verb."""
    base: dict[str, Any] = {"at": "2026-11-23T08:00:00.000Z", "host": "me@gpu1.lab", "plan": "0" * 16, "by": "anna"}
    return Approval(
        **{**base, **fields}, place="gpu1", verb=verb.name, stops_meter=verb.stops_meter, irreversible=verb.irreversible
    )


def profile(**fields: Any) -> Profile:
    tier = Tier("volume", ("/workspace",), {"destroy": "yes", "stop": "yes"}, bills_after=("destroy",))
    base: dict[str, Any] = {
        "metered": "money",
        "meter_stop": "destroy",
        "verbs": (DESTROY,),
        "tiers": (tier,),
        "facts": {
            "verbs.destroy": Fact("ends billing", "2026-11-01", "its page"),
            "currency": Fact("", "2020-01-01", "x"),
        },
    }
    return Profile("rental", "A rental", **{**base, **fields})


def receipt(run_id: str = RUN, **fields: Any) -> Receipt:
    base: dict[str, Any] = {
        "attempt": 1,
        "roster": "a" * 64,
        "files": 12,
        "bytes": 3000,
        "made_at": "2026-11-20T12:00:00.000Z",
        "verified_at": "2026-11-20T12:01:00.000Z",
        "directory": "/home/anna/runs/digits",
        "checkpoint": "checkpoints/step-100",
    }
    return Receipt("gpu1", run_id, **{**base, **fields})


def seen(**fields: Any) -> Seen:
    """A place of which everything is home."""
    base: dict[str, Any] = {
        "runs": (RunAtPlace(RUN, "succeeded", ended=True, attempt=1),),
        "remains": {RUN: Remains(f"/data/{RUN}", commit="c" * 40, dirty=False, tree="t" * 16)},
        "proofs": {RUN: Proof(receipt())},
        "code": {RUN: "tree tttt is in /home/anna/code"},
    }
    return Seen(**{**base, **fields})
