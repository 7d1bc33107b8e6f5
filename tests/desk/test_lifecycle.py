"""The phases of a place: the first of which something does not hold, with its evidence and the next command."""

from __future__ import annotations

import pytest

from holdfast.desk.lifecycle import find_lifecycle
from holdfast.desk.places.facts import write_facts
from holdfast.desk.teardown.approvals import use_approval
from holdfast.desk.teardown.conditions import Proof, RunAtPlace, Seen
from holdfast.desk.teardown.last_check import keep_check
from holdfast.host.clock import utc_now
from holdfast.model.place import Place, Rent
from holdfast.model.profile import Profile
from holdfast.model.record import replace
from holdfast.model.teardown import GoneCheck
from tests.desk.boxes import FACTS_OF_A_BOX
from tests.desk.teardown.gates import PLACE, RUN, TODAY, approval, profile, seen

pytestmark = [pytest.mark.files, pytest.mark.requirement("DOC-03")]
RENTED = replace(PLACE, rent=Rent(since="2026-11-20T08:00:00.000Z", rate=1.99, currency="USD"))


def find(
    place: Place, looked: Seen | None = None, kind: Profile | None = None, run_id: str | None = None
) -> tuple[int | None, tuple[str, ...], str]:
    found = find_lifecycle(place, run_id, kind, lambda: looked or Seen(), TODAY)
    assert [phase.number for phase in found.phases] == [*range(-1, 5), *([5] if run_id is None else [])]
    return found.phase, found.missing, found.command


def test_a_place_goes_through_its_phases(isolated_environment: dict[str, str]) -> None:
    assert find(Place("gpu1", host="gpu1", configured=False)) == (
        -1, ("place", "profile"), "holdfast place add gpu1 gpu1",
    )  # fmt: skip
    assert find(PLACE, kind=profile())[:2] == (-1, ("rent",))
    assert find(RENTED, kind=profile()) == (0, ("measured",), "holdfast place probe gpu1")
    write_facts(RENTED, FACTS_OF_A_BOX)
    assert find(RENTED, kind=profile())[:2] == (1, ("sent",))
    live = seen(runs=(RunAtPlace(RUN, "running", ended=False),))
    assert find(RENTED, live, profile()) == (3, ("no live run",), "holdfast patrol --on gpu1")
    unpulled = seen(proofs={RUN: Proof(problem="it was not pulled")})
    assert find(RENTED, unpulled, profile()) == (4, (f"receipt: {RUN}",), f"holdfast pull gpu1:{RUN}")
    assert find(RENTED, seen(), profile(), RUN) == (None, (), "")
    assert find(RENTED, seen(), profile()) == (5, ("approved",), "holdfast teardown gpu1")
    use_approval(approval(at=utc_now()), 0)
    assert find(RENTED, seen(), profile()) == (5, ("gone",), "holdfast teardown gpu1 --check")
    keep_check(PLACE, GoneCheck(utc_now(), "destroy", "gone", "404"))
    assert find(RENTED, seen(), profile()) == (None, (), "")


def test_what_could_not_be_looked_at_is_no_phase_that_is_done(isolated_environment: dict[str, str]) -> None:
    write_facts(RENTED, FACTS_OF_A_BOX)
    phase, missing, command = find(RENTED, Seen(unseen="no answer within 30 s"), profile())
    assert (phase, missing, command) == (1, ("sent",), "holdfast place probe gpu1")


@pytest.mark.requirement("LOC-02")
def test_a_machine_of_ones_own_has_no_last_act(isolated_environment: dict[str, str]) -> None:
    own = Place("mine", host="mine")
    write_facts(own, FACTS_OF_A_BOX)
    assert find(own, seen(), profile(metered="none", verbs=()))[0] == 4  # its receipts are of another place
    assert find(own, seen(runs=(), proofs={}), profile(metered="none", verbs=()))[0] == 1


def test_what_was_approved_of_another_machine_of_this_name_ends_nothing(isolated_environment: dict[str, str]) -> None:
    write_facts(RENTED, FACTS_OF_A_BOX)
    use_approval(approval(at=utc_now(), host="me@gpu0.lab"), 0)
    keep_check(RENTED, GoneCheck(utc_now(), "destroy", "gone", "404", "me@gpu0.lab"))
    assert find(RENTED, seen(), profile()) == (5, ("approved",), "holdfast teardown gpu1")
