"""The plan of one act and its one approval: used once, for that plan alone, on disk before anything is told."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast.desk.places.facts import forget_place
from holdfast.desk.profiles.read import list_profiles, load_profile
from holdfast.desk.teardown.approvals import read_approvals
from holdfast.desk.teardown.conditions import NO, Proof, Seen
from holdfast.desk.teardown.gate import Gate, Wish, approve, look, verify
from holdfast.desk.teardown.plan import build_plan, choose_verb, list_billed
from holdfast.host.files import files
from holdfast.model.errors import HoldfastError, NoSuchRun, PreflightFailed, StorageError, UsageError
from holdfast.model.place import Place, Rent
from holdfast.model.profile import Fact, Profile, Tier
from holdfast.model.receipt import Tried
from holdfast.model.record import replace
from tests.desk.teardown.gates import DESTROY, PLACE, RUN, STOP, TODAY, profile, receipt, seen
from tests.status_endpoint import Endpoint
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.files


def look_once(wish: Wish | None = None, kind: Profile | None = None, looked: Seen | None = None) -> Gate:
    return look(wish or Wish(PLACE), kind or profile(), lambda: looked or seen(), TODAY)


@pytest.mark.requirement("VRFY-01", "VRFY-07", "COST-03")
def test_the_plan_names_host_verb_what_it_destroys_and_what_bills_on() -> None:
    gate = look_once()
    assert gate.open
    plan = gate.plan
    assert plan is not None
    assert (plan.place, plan.host, plan.verb) == ("gpu1", "me@gpu1.lab", "destroy")
    assert plan.how == "destroy the machine me@gpu1.lab of gpu1 in the console"
    assert plan.destroys == ("the disk",)
    assert plan.receipts == {RUN: "a" * 64}
    assert [step.startswith("later") for step in plan.steps] == [False, *[True] * 4, False]  # the instance first
    assert plan.steps[0].startswith("see on the provider's own page"), "nobody can be asked"
    asked = replace(PLACE, rent=Rent(status_command=("providerctl", "show", "7")))
    shown = look_once(Wish(asked)).plan
    assert shown is not None
    assert shown.steps[0] == "holdfast teardown gpu1 --check"


@pytest.mark.requirement("VRFY-09")
def test_VRFY_09_a_status_of_another_machine_is_found_before_it_is_believed(tmp_path: Path) -> None:
    """A mistyped address answers 404 at once, and would call a machine gone that bills on."""
    endpoint = Endpoint()
    try:
        place = replace(PLACE, rent=Rent(status_url=endpoint.url))
        for answer, holds, word in (
            ((404, b""), NO, "says that it is gone: the status page answers 404"),
            ((200, b'{"status": "stopped"}'), NO, "says that it is stopped"),
            ((500, b""), "yes", "cannot be told now"),
            ((200, b'{"status": "running"}'), "yes", "its state is running"),
        ):
            endpoint.answers = [answer]
            gate = look_once(Wish(place))
            [found] = [each for each in gate.conditions if each.name == "its status"]
            assert (found.holds, word in found.seen, gate.open) == (holds, True, holds == "yes"), answer
        endpoint.answers = [(404, b"")]
        unseen = look_once(Wish(place), looked=replace(seen(), unseen="no route"))
        assert [each.name for each in unseen.conditions if each.name == "its status"] == [], "that proves nothing"
    finally:
        endpoint.end()


@pytest.mark.requirement("PROF-11", "PROF-15")
def test_instance_address_volume_and_snapshot_are_each_in_the_list() -> None:
    found = list_billed(PLACE, profile(), DESTROY)
    assert [each.split()[0] for each in found] == ["address", "snapshot", "volume", "storage"]


@pytest.mark.requirement("VRFY-01", "RAIL-16")
def test_an_approval_is_used_once(isolated_environment: dict[str, str]) -> None:
    gate = look_once()
    used = approve(gate, gate.plan_hash)
    assert read_approvals("gpu1").used == (used,)
    assert (used.host, used.verb, used.plan) == ("me@gpu1.lab", "destroy", gate.plan_hash)
    with pytest.raises(PreflightFailed, match="was used at"):
        approve(gate, gate.plan_hash)
    again = look_once()
    assert again.plan_hash != gate.plan_hash  # the same act another time is another plan
    with pytest.raises(PreflightFailed, match="was used at"):
        approve(again, gate.plan_hash)
    approve(again, again.plan_hash)
    assert read_approvals("gpu1").number == 2


def test_an_approval_of_another_plan_is_refused_and_nothing_is_written(isolated_environment: dict[str, str]) -> None:
    gate = look_once()
    others = [
        look_once(kind=profile(verbs=(DESTROY, STOP)), wish=Wish(PLACE, verb="stop")),
        look_once(wish=Wish(PLACE, left={RUN: "a smoke test"}), looked=seen(proofs={}, code={}, remains={})),
        look_once(wish=Wish(Place("gpu1", host="me@other.lab"))),
        look_once(wish=Wish(Place("gpu1", host="me@gpu1.lab", port=41022))),  # another one behind the same address
    ]
    for other in others:
        assert other.open, other.conditions
        with pytest.raises(PreflightFailed, match="is for another plan"):
            approve(gate, other.plan_hash)
    assert read_approvals("gpu1").number == 0


@pytest.mark.requirement("VRFY-01", "RAIL-16")
def test_an_approval_is_good_for_its_day_and_the_next(isolated_environment: dict[str, str]) -> None:
    shown = look_once()
    later = look(Wish(PLACE), profile(), seen, "2026-11-25")
    with pytest.raises(PreflightFailed, match="is of 2026-11-23, and one is good for that day and the next"):
        approve(later, shown.plan_hash)
    next_day = look(Wish(PLACE), profile(), seen, "2026-11-24")
    assert approve(next_day, shown.plan_hash).plan == shown.plan_hash
    for gate in (next_day, look(Wish(PLACE), profile(), seen, "2026-11-24")):
        with pytest.raises(PreflightFailed, match="was used at"):
            approve(gate, shown.plan_hash)


@pytest.mark.requirement("VRFY-01")
def test_a_place_that_was_removed_and_added_anew_has_used_its_approvals(isolated_environment: dict[str, str]) -> None:
    gate = look_once()
    approve(gate, gate.plan_hash)
    [kept] = forget_place("gpu1")
    assert kept.endswith("places/gpu1/approvals.jsonl")
    again = look_once()
    with pytest.raises(PreflightFailed, match="was used at"):
        approve(again, gate.plan_hash)
    assert again.plan_hash != gate.plan_hash


def _approve_in_child(gate: Gate, results: Any) -> None:
    try:
        approve(gate, gate.plan_hash)
        results.put("approved")
    except HoldfastError:
        results.put("refused")


def _approve_and_die(gate: Gate, at: str) -> None:
    setattr(files, at, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    approve(gate, gate.plan_hash)


@pytest.mark.parametrize(("at", "is_used"), [("append", False), ("sync_directory", True)])
def test_an_approval_counts_from_the_line_on_whatever_is_killed(
    isolated_environment: dict[str, str], at: str, is_used: bool
) -> None:
    gate = look_once()
    child = multiprocessing.get_context("fork").Process(target=_approve_and_die, args=(gate, at))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert read_approvals("gpu1").number == int(is_used)
    if is_used:  # the verb was told to nobody, and is approved anew
        with pytest.raises(PreflightFailed, match="was used at"):
            approve(gate, gate.plan_hash)
        gate = look_once()
    approve(gate, gate.plan_hash)


def test_approvals_that_cannot_be_read_open_no_gate(isolated_environment: dict[str, str]) -> None:
    path = Path(isolated_environment["XDG_STATE_HOME"]) / "holdfast/places/gpu1/approvals.jsonl"
    path.mkdir(parents=True)
    with pytest.raises(StorageError, match="cannot be read"):
        look_once()
    path.rmdir()
    path.write_bytes(b"\0\xff{]\n" * 3)
    gate = look_once()
    approve(gate, gate.plan_hash)
    assert [each.plan for each in read_approvals("gpu1").used] == [gate.plan_hash]


def test_of_two_who_approve_at_once_one_is_refused(isolated_environment: dict[str, str]) -> None:
    gate, context = look_once(), multiprocessing.get_context("fork")
    results = context.Queue()
    children = [context.Process(target=_approve_in_child, args=(gate, results)) for _ in range(2)]
    for child in children:
        child.start()
    assert sorted(results.get(timeout=LIMIT_S) for _ in children) == ["approved", "refused"]
    for child in children:
        child.join()
    assert read_approvals("gpu1").number == 1


def test_a_line_that_a_crash_tore_is_no_approval_and_no_plan_from_before_it_counts(
    isolated_environment: dict[str, str],
) -> None:
    gate = look_once()
    approve(gate, gate.plan_hash)
    before = look_once()
    path = Path(isolated_environment["XDG_STATE_HOME"]) / "holdfast/places/gpu1/approvals.jsonl"
    with path.open("ab") as file:
        file.write(b'{"plan": "tor')
    assert read_approvals("gpu1").number == 2
    with pytest.raises(PreflightFailed, match="approved meanwhile"):
        approve(before, before.plan_hash)
    after = look_once()
    approve(after, after.plan_hash)
    assert [each.plan for each in read_approvals("gpu1").used] == [gate.plan_hash, after.plan_hash]


@pytest.mark.requirement("PROF-08")
def test_a_fact_that_is_seven_months_old_is_verified_again_before_what_cannot_be_taken_back() -> None:
    old = {"verbs.destroy": Fact("ends billing", "2026-04-20", "its page"), "tiers.volume": Fact("", "2026-11-01", "x")}
    kind = profile(verbs=(DESTROY, STOP), facts=old)
    gate = look_once(Wish(PLACE, verb="destroy"), kind)
    assert not gate.open
    [missing] = [each for each in gate.conditions if each.holds == NO]
    assert "2026-04-20" in missing.seen
    assert "verbs.destroy: stops the meter; cannot be taken back; destroys the disk; keeps the volume" in missing.seen
    assert missing.command.endswith("holdfast profile verify rental verbs.destroy")
    wish = verify(gate, Wish(PLACE, verb="destroy"), ["verbs.destroy"])
    again = look_once(wish, kind)
    assert again.open
    assert again.plan is not None
    assert again.plan.verified == ("verbs.destroy",)
    assert look_once(Wish(PLACE, verb="destroy", verified=("verbs", "tiers")), kind).open
    with pytest.raises(UsageError, match="has no such fact"):
        look_once(Wish(PLACE, verb="destroy", verified=("verbs.des",)), kind)
    assert look_once(Wish(PLACE, verb="stop"), kind).open  # that can be taken back


@pytest.mark.requirement("VRFY-03")
def test_VRFY_03_a_checkpoint_that_nobody_can_try_is_accepted_by_its_name_and_stands_in_the_plan() -> None:
    looked = seen(proofs={RUN: Proof(receipt(untried=Tried("checkpoints/9.msgpack", "not load-tested", "unknown")))})
    name = f"{RUN}/checkpoints/9.msgpack"
    shut = look_once(Wish(PLACE, verb="destroy"), looked=looked)
    assert [each.command.partition(": ")[2] for each in shut.conditions if each.holds == NO] == [
        f"holdfast teardown {PLACE.name} --verb destroy --verified {name}"
    ]
    gate = look_once(Wish(PLACE, verb="destroy", verified=(name,)), looked=looked)
    assert gate.open
    assert gate.plan is not None
    assert gate.plan.verified == (name,)
    assert look_once(Wish(PLACE, RUN, verified=(name,)), looked=looked).open
    for other in (f"{RUN}/checkpoints/8.msgpack", "x/y"):
        with pytest.raises(UsageError, match="no newest checkpoint"):
            look_once(Wish(PLACE, verified=(other,)), looked=looked)


@pytest.mark.requirement("LOC-02")
def test_an_owned_machine_has_nothing_to_stop_and_its_runs_can_still_be_verified() -> None:
    for place in (Place("local", kind="local"), Place("mine", host="mine")):
        gate = look_once(Wish(place), profile(metered="none", verbs=()))
        assert (gate.open, gate.plan) == (True, None)
        assert "nothing to stop" in gate.word
        one = look_once(Wish(place, run_id=RUN), profile(metered="none", verbs=()), seen(proofs={RUN: Proof()}))
        assert not one.open
        assert f"receipt: {RUN}" in [each.name for each in one.conditions]


def test_a_metered_place_without_a_verb_is_refused() -> None:
    with pytest.raises(PreflightFailed, match="it has no profile"):
        look(Wish(Place("gpu1", rent=Rent(rate=1.0))), None, seen, TODAY)
    with pytest.raises(PreflightFailed, match="no verb that ends it"):
        look_once(kind=profile(verbs=()))


def test_several_verbs_are_told_apart_and_one_is_named() -> None:
    kind = profile(verbs=(DESTROY, STOP))
    with pytest.raises(UsageError, match=r"2 ways: destroy \(stops the meter, cannot be taken back\); stop"):
        choose_verb(kind, None, "gpu1")
    with pytest.raises(UsageError, match="no verb 'destory'") as caught:
        choose_verb(kind, "destory", "gpu1")
    assert "--verb destroy" in caught.value.hint
    with pytest.raises(UsageError, match="no verb 'delete'") as caught:
        choose_verb(replace(kind, verbs=(STOP, DESTROY), meter_stop="destroy"), "delete", "gpu1")
    assert caught.value.hint == "holdfast teardown gpu1 --verb destroy"


def test_a_place_without_a_profile_is_told_the_command_that_gives_it_one() -> None:
    with pytest.raises(PreflightFailed) as caught:
        look(Wish(Place("gpu1", host="gpu1.lab", port=22022)), None, seen, TODAY)
    assert caught.value.hint.startswith("holdfast place add gpu1 gpu1.lab --port 22022 --profile PROFILE --replace; ")
    with pytest.raises(PreflightFailed) as caught:
        look(Wish(Place("gpu1", host="gpu1.lab", root="/data/runs")), None, seen, TODAY)
    assert caught.value.hint.startswith('set profile = "..." in [gpu1] of places.toml')


def test_a_run_that_is_left_behind_must_be_there() -> None:
    with pytest.raises(NoSuchRun, match="no such run"):
        look_once(Wish(PLACE, left={"20260101-000000-none-0000": "x"}))


@pytest.mark.requirement("VRFY-07", "COST-03")
def test_every_shipped_profile_says_of_each_verb_what_a_person_needs(isolated_environment: dict[str, str]) -> None:
    wrong = []
    for name in list_profiles():
        kind = load_profile(name)
        for verb in kind.verbs:
            plan = build_plan(PLACE, kind, verb, number=0, day=TODAY, receipts={}, left={}, verified=())
            if "{" in plan.how or not plan.how or (plan.irreversible and not plan.destroys):
                wrong.append((name, verb.name, plan.how, plan.destroys))
        if kind.metered == "money" and not kind.verbs:
            wrong.append((name, "", "", ()))
    assert not wrong


def test_the_hint_of_one_run_is_about_that_run() -> None:
    one = look_once(Wish(PLACE, run_id=RUN), looked=seen(code={}))
    assert [each.command.partition("   ")[0] for each in one.conditions if each.holds != "yes"] == [
        f"holdfast teardown gpu1:{RUN} --code DIR"
    ]


def test_a_copy_on_the_machine_that_ends_is_not_home(tmp_path: Path) -> None:
    def list_shut(where: str, answer: str) -> list[str]:
        tier = Tier("disk", (str(tmp_path),), {"destroy": answer})
        looked = seen(proofs={RUN: Proof(replace(receipt(), directory=where))})
        gate = look_once(Wish(replace(PLACE, kind="local", host=None)), profile(tiers=(tier,)), looked)
        return [each.name for each in gate.conditions if each.holds != "yes"]

    assert list_shut(f"{tmp_path}/copy", "yes") == []
    for where, answer in ((f"{tmp_path}/copy", "no"), (f"{tmp_path}/copy", "depends"), ("/else", "yes")):
        assert list_shut(where, answer) == [f"copy: {RUN}"], (where, answer)
