"""What must hold before a place is given up: each thing that is missing closes the gate by its name."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.desk.teardown.conditions import NO, UNKNOWN, YES, Condition, Proof, RunAtPlace, Seen, judge
from holdfast.model.receipt import DAMAGED, UNREAD, LeftOut, Tried
from holdfast.model.teardown import NO_RECORD, Remains
from tests.desk.teardown.gates import OTHER, PLACE, RUN, receipt, seen

pytestmark = pytest.mark.pure


def find_open(looked: Seen, left: dict[str, str] | None = None, *, whole: bool = True) -> list[Condition]:
    return [each for each in judge(PLACE, looked, left or {}, whole=whole) if each.holds != YES]


def test_a_place_with_everything_home_is_open() -> None:
    found = judge(PLACE, seen(), {}, whole=True)
    assert [each.name for each in found] == ["no live run", "empty queue", "receipts", "code", "tracker", "results"]
    assert {each.holds for each in found} == {YES}
    assert "checkpoint checkpoints/step-100 loads" in found[2].seen


def of(run_id: str = RUN, **fields: Any) -> dict[str, Any]:
    return {run_id: Remains(f"/data/{run_id}", **{"commit": "c" * 40, "dirty": False, "tree": "t" * 16, **fields})}


LIVE = RunAtPlace(OTHER, "running", ended=False)
CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "live run": ({"runs": (RunAtPlace(RUN, "succeeded", ended=True, attempt=1), LIVE)}, "no live run", NO, OTHER),
    "vanished": ({"vanished": (OTHER,)}, "vanished runs", NO, "may not be mounted"),
    "order without an answer": ({"unanswered": (OTHER,)}, "no live run", NO, OTHER),
    "job in the queue": ({"queued": ("night: 3 queued",)}, "empty queue", NO, "night: 3 queued"),
    "queue unread": ({"queue_unseen": "its queue could not be read"}, "empty queue", UNKNOWN, "could not be read"),
    "unreachable": ({"unseen": "no answer within 30 s"}, "runs", UNKNOWN, "nothing follows from it"),
    "no receipt": ({"proofs": {RUN: Proof()}}, f"receipt: {RUN}", NO, "was not pulled"),
    "receipt unread": (
        {"proofs": {RUN: Proof(problem="no answer", unknown=True)}}, f"receipt: {RUN}", UNKNOWN, "no answer",
    ),
    "late writer": (
        {"proofs": {RUN: Proof(receipt(), "metrics.jsonl was written since")}}, f"receipt: {RUN}", NO, "written since",
    ),
    "live copy": ({"proofs": {RUN: Proof(receipt(live=True))}}, f"receipt: {RUN}", NO, "had not ended"),
    "0 of 0 files": ({"proofs": {RUN: Proof(receipt(files=0))}}, f"receipt: {RUN}", NO, "no file at all"),
    "other run": ({"proofs": {RUN: Proof(receipt(OTHER))}}, f"receipt: {RUN}", NO, OTHER),
    "other attempt": ({"proofs": {RUN: Proof(receipt(attempt=3))}}, f"receipt: {RUN}", NO, "attempt 3"),
    "damaged": (
        {"proofs": {RUN: Proof(receipt(damaged=(Tried("model.pt", "loaded", "has NaN"),)))}},
        f"receipt: {RUN}", NO, "model.pt: has NaN",
    ),
    "checkpoint does not load": (
        {"proofs": {RUN: Proof(receipt(checkpoint="", tried=(Tried("checkpoints/step-1/0.pt", "read"),)))}},
        f"receipt: {RUN}", NO, "none of them was loaded",
    ),
    "a file that could not be read": (
        {"proofs": {RUN: Proof(receipt(left_out=(LeftOut("artifacts/m.pt", f"{UNREAD}: Input/output error"),)))}},
        f"receipt: {RUN}", NO, "m.pt: cannot be read",
    ),
    "code unknown": ({"code": {}}, f"code: {RUN}", NO, "tree tttt"),
    "tracker unsent": (
        {"remains": of(offline=("/home/me/project/wandb/offline-run-1",))}, f"tracker: {RUN}", NO, "offline-run-1",
    ),
    "results not copied": (
        {"remains": of(results="/d", results_state="failed", results_problem="disk full")}, f"results: {RUN}", NO,
        "disk full",
    ),
    "results without a record": ({"remains": of(results="/d")}, f"results: {RUN}", NO, "no record"),
    "files unread": ({"remains": of(problem="too many")}, f"tracker: {RUN}", UNKNOWN, "too many"),
}  # fmt: skip


@pytest.mark.requirement("VRFY-01", "VRFY-03", "VRFY-05", "VRFY-06")
@pytest.mark.gotcha("U20", "U42")
def test_each_missing_condition_closes_the_gate_by_its_name() -> None:
    wrong = {}
    for what, (fields, name, holds, words) in CASES.items():
        found = find_open(seen(**fields))
        [first] = [each for each in found if each.name == name] or [Condition("none", YES, "")]
        if (first.holds, words in first.seen, bool(first.command)) != (holds, True, True) or len(found) > 1:
            wrong[what] = found
    assert not wrong


@pytest.mark.requirement("VRFY-03")
def test_VRFY_03_a_checkpoint_that_cannot_be_tried_here_closes_until_a_person_says_that_it_loads() -> None:
    untried = Tried("checkpoints/9.msgpack", "not load-tested", "a format that is not known here")
    looked, name = seen(proofs={RUN: Proof(receipt(untried=untried))}), f"{RUN}/checkpoints/9.msgpack"
    [found] = find_open(looked)
    assert (found.name, found.holds) == (f"checkpoint: {RUN}", NO)
    assert "cannot be tried here: a format that is not known here" in found.seen
    assert found.command.endswith(f"holdfast teardown {PLACE.name} --verified {name}")
    accepted = judge(PLACE, looked, {}, whole=True, verified=(name,))
    assert {each.holds for each in accepted} == {YES}
    assert not find_open(looked, {RUN: "a smoke test"})


@pytest.mark.requirement("VRFY-03")
def test_VRFY_03_an_accepted_newest_checkpoint_closes_until_a_person_says_that_it_loads() -> None:
    damage = Tried("checkpoints/9.pt", DAMAGED, "it was cut off")
    looked = seen(proofs={RUN: Proof(receipt(checkpoint="", accepted=(damage,), untried=damage))})
    [found] = find_open(looked)
    assert (found.name, found.holds) == (f"checkpoint: {RUN}", NO)
    assert "checkpoints/9.pt: damaged, and accepted as it is: it was cut off" in found.seen
    said = judge(PLACE, looked, {}, whole=True, verified=(f"{RUN}/checkpoints/9.pt",))
    assert {each.holds for each in said} == {YES}


def test_what_could_not_be_looked_at_on_the_box_holds_nothing() -> None:
    found = find_open(seen(remains={}, remains_unseen="cut off"))
    assert {each.holds for each in found} == {UNKNOWN}
    assert [each.name.split(":")[0] for each in found] == ["code", "tracker", "results"]


def test_a_run_is_left_behind_with_a_reason_and_nothing_else() -> None:
    looked = seen(proofs={RUN: Proof()}, code={}, remains={})
    assert find_open(looked)
    assert not find_open(looked, {RUN: "a smoke test"})
    assert "a smoke test" in judge(PLACE, looked, {RUN: "a smoke test"}, whole=True)[-1].seen
    live = seen(runs=(RunAtPlace(RUN, "running", ended=False),))
    assert [each.name for each in find_open(live, {RUN: "no matter"})] == ["no live run"]


def test_what_has_vanished_for_good_is_left_behind() -> None:
    assert not find_open(seen(vanished=(OTHER,)), {OTHER: "the disk was wiped"})


def test_offline_runs_of_a_tracker_that_are_in_the_copy_are_named_and_do_not_close() -> None:
    looked = seen(remains=of(offline=(f"/data/{RUN}/artifacts/wandb/offline-run-1",)))
    assert not find_open(looked)
    assert "wandb sync" in next(each.seen for each in judge(PLACE, looked, {}, whole=True) if each.name == "tracker")


def test_what_was_left_out_of_a_copy_is_counted() -> None:
    looked = seen(proofs={RUN: Proof(receipt(left_out=(LeftOut("a", "a socket"), LeftOut("b", "a socket"))))})
    assert "2 left out" in next(each.seen for each in judge(PLACE, looked, {}, whole=True) if each.name == "receipts")


def test_the_command_for_a_closed_gate_opens_it() -> None:
    damaged = receipt(damaged=(Tried("val 1.jsonl", "read", "line 1: it holds NaN"),), directory="/home/me/a copy")
    [wrong] = find_open(seen(proofs={RUN: Proof(damaged)}))
    assert wrong.command.startswith(f"holdfast pull gpu1:{RUN} '/home/me/a copy'")
    assert "--accept 'val 1.jsonl'" in wrong.command
    accepted = receipt(accepted=damaged.damaged)
    assert not find_open(seen(proofs={RUN: Proof(accepted)}))
    found = judge(PLACE, seen(proofs={RUN: Proof(accepted)}), {}, whole=True)
    assert "accepted as damaged: " in next(each.seen for each in found if each.name == "receipts")
    more = receipt(left_out=(LeftOut("...", f"{UNREAD}: 5 more"),))
    assert find_open(seen(proofs={RUN: Proof(more)}))


def test_a_copy_of_a_part_of_the_run_closes() -> None:
    for one in (
        LeftOut("--without *.pt", "3 files, 2.0 GiB, are not wanted"),
        LeftOut("artifacts/", "cannot be read: Permission denied"),
    ):
        [wrong] = find_open(seen(proofs={RUN: Proof(receipt(left_out=(one,)))}))
        assert (wrong.name, wrong.holds, one.path in wrong.seen, bool(wrong.command)) == (
            f"receipt: {RUN}", NO, True, True,
        )  # fmt: skip


def test_without_a_tree_the_copy_has_the_code_where_the_run_recorded_it() -> None:
    for fields, is_open in (
        ({"tree": "", "dirty": False, "pushed": "origin/main"}, True),
        ({"tree": "", "dirty": False}, False),  # the commit may be in that machine's repository alone
        ({"tree": "", "dirty": True, "diff": True, "pushed": "origin/main"}, True),
        ({"tree": "", "dirty": True, "diff": True}, False),
        ({"tree": "", "dirty": True, "pushed": "origin/main"}, False),
        ({"tree": "", "copies": 2}, False),
        ({"tree": "", "commit": None, "dirty": None}, False),
        ({"tree": "", "commit": None, "dirty": None, "copies": 2}, True),
    ):
        assert (find_open(seen(code={}, remains=of(**fields))) == []) is is_open, fields


def test_code_that_was_never_recorded_can_only_be_left_behind_and_no_directory_is_asked_for() -> None:
    [never] = find_open(seen(code={}, remains=of(tree="", commit=None, dirty=None)))
    assert never.command.startswith(f"holdfast teardown gpu1 --leave {RUN} --reason TEXT")
    [elsewhere] = find_open(seen(code={}, remains=of(tree="t" * 16)))
    assert elsewhere.command.startswith("holdfast teardown gpu1 --code DIR")
    [of_one_run] = find_open(seen(code={}, remains=of(tree="t" * 16)), whole=False)
    assert of_one_run.command.startswith(f"holdfast teardown gpu1:{RUN} --code DIR")


def test_a_record_that_cannot_be_read_says_nothing_of_code_tracker_and_results() -> None:
    unread = of(tree="", commit=None, dirty=None, problem=NO_RECORD)
    found = find_open(seen(code={}, remains=unread))
    assert [(each.name.partition(":")[0], each.holds) for each in found] == [
        (name, UNKNOWN) for name in ("code", "tracker", "results")
    ]


def test_of_one_run_the_queue_is_not_asked() -> None:
    assert not find_open(seen(queue_unseen="not asked"), whole=False)


def test_results_are_expected_of_a_success_alone() -> None:
    failed = (RunAtPlace(RUN, "failed", ended=True, attempt=1),)
    assert not find_open(seen(runs=failed, remains=of(results="/d")))
    assert not find_open(seen(remains=of(results="/d", results_state="copied")))
    assert find_open(seen(runs=failed, remains=of(results="/d", results_state="failed")))
