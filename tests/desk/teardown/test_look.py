"""What the gate makes of a place's answers: a stranger's words are bounded, and what does not fit opens nothing."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.desk.orders.journal import OrderKind, Step, claim_order, list_orders, note_step, read_journal
from holdfast.desk.runs.answer import read_answer
from holdfast.desk.runs.poll import look_again
from holdfast.desk.runs.registry import places_directory, rebuild
from holdfast.desk.teardown.conditions import YES, Proof, Seen, judge
from holdfast.desk.teardown.look import find_commit, look_at, prove_home, read_queue
from holdfast.host.clock import utc_now
from holdfast.model.errors import StorageError, Unreachable
from holdfast.model.place import Place, Rent
from holdfast.model.receipt import Tried
from holdfast.model.record import replace
from holdfast.model.teardown import Remains
from holdfast.model.wire import WireError, encode
from holdfast.transport.base import Done
from tests.desk.runs.sightings import answer, over, row, run_id
from tests.desk.teardown.gates import receipt

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files
PLACE = Place("gpu1", host="gpu1")


class Box:
    """A place that answers what it is told to; an exception is raised."""

    is_met = True

    def __init__(self, poll: object = None, remains: object = None, queue: bytes = b'{"groups": []}') -> None:
        """`poll` and `remains` are answers of the entries."""
        self.answers = {"poll": poll, "remains": remains}
        self.queue = queue
        self.transport: Any = self

    def run(self, _argv: object, *, limit_s: float) -> Done:
        assert limit_s <= 60
        return Done(0, self.queue, b"")

    def entry(self, name: str, words: object = (), *, limit_s: float) -> dict[str, Any]:
        assert limit_s <= 120
        found = self.answers[name]
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, dict)
        return found


def look(box: Box, **fields: Any) -> Seen:
    def prove(_place: Place, which: str) -> Proof:
        return Proof(receipt(which))

    return look_at(PLACE, open_box=lambda _place: box, prove_home=prove, code_at=(), **fields)


def remains_of(*ids: str) -> dict[str, Any]:
    return {"runs": {each: encode(Remains(f"/data/{each}")) for each in ids}}


def test_all_runs_and_what_is_only_there_are_seen(isolated_environment: dict[str, str]) -> None:
    box = Box(answer(over(1), row(2), complete=True), remains_of(run_id(1)))
    seen = look(box)
    assert [(each.run_id, each.ended, each.attempt) for each in seen.runs] == [
        (run_id(1), True, 1),
        (run_id(2), False, 1),
    ]
    assert (list(seen.remains), list(seen.proofs), seen.unseen, seen.queued) == ([run_id(1)], [run_id(1)], "", ())


def test_a_run_that_began_while_the_others_were_proven_is_seen(isolated_environment: dict[str, str]) -> None:
    before, later = answer(over(1), complete=True), answer(over(1), row(2), complete=True)
    seen = look(Box([before, later], remains_of(run_id(1))))
    assert [(each.run_id, each.ended) for each in seen.runs] == [(run_id(1), True), (run_id(2), False)]
    assert "no route" in look(Box([before, Unreachable("no route")], remains_of(run_id(1)))).unseen


@pytest.mark.parametrize(
    ("poll", "words"),
    [
        (Unreachable("no route"), "no route"),
        ({"schema": 1}, "was not understood"),
        (answer(over(1), complete=False), "more runs than the 1"),
        (answer(over(1), {"run_id": "x"}, complete=True), "more runs than the 1"),
        (answer(over(1), complete=True, missing_roots=["/data"]), "/data cannot be read"),
    ],
)
def test_a_place_that_is_not_seen_whole_is_not_seen(
    isolated_environment: dict[str, str], poll: object, words: str
) -> None:
    assert words in look(Box(poll)).unseen


def test_what_cannot_be_read_of_queue_and_files_is_said(isolated_environment: dict[str, str]) -> None:
    wrong: tuple[object, ...] = (StorageError("disk on fire"), {"runs": []}, {"runs": {run_id(1): {"run_dir": 7}}})
    for remains in wrong:
        seen = look(Box(answer(over(1), complete=True), remains, queue=b"not json"))
        assert "could not be looked at" in seen.remains_unseen
        assert "could not be read" in seen.queue_unseen


def test_a_place_without_any_run_that_took_some_is_not_empty(isolated_environment: dict[str, str]) -> None:
    empty = Box(answer(complete=True))
    assert look(empty).vanished == ()
    with claim_order("gpu1", "digits", "0" * 64, "", run_id=None, what=OrderKind.RUN, ended=frozenset()) as claim:
        note_step("gpu1", Step.SENT, claim.run_id)
        note_step("gpu1", Step.TAKEN, claim.run_id)
    assert look(empty).vanished == (claim.run_id,)
    others = Box(answer(over(1), complete=True), remains_of(run_id(1)))
    assert look(others).vanished == (claim.run_id,), "others that are there say nothing of it"
    note_step("gpu1", Step.REMOVED, claim.run_id)
    assert look(others).vanished == (), "this desk had it removed"


def test_a_run_that_is_gone_while_others_remain_has_vanished(isolated_environment: dict[str, str]) -> None:
    """Its directory was removed by hand after it had ended; and what `reconcile` makes anew does not forget it."""
    both, one = answer(over(1), over(2), complete=True), answer(over(1), complete=True)
    assert look(Box(both, remains_of(run_id(1), run_id(2)))).vanished == ()
    left = Box(one, remains_of(run_id(1)))
    assert look(left).vanished == (run_id(2),)
    rebuild(read_answer("gpu1", one, at=utc_now()))
    assert look(left).vanished == (run_id(2),)
    assert look(left, left=(run_id(2),)).vanished == (run_id(2),), "what is left behind is named by the gate"
    assert look(Box(both, remains_of(run_id(1), run_id(2)))).vanished == (), "it was a mount that came back"


def test_one_run_that_is_gone_has_vanished_and_the_next_step_is_of_the_place(
    isolated_environment: dict[str, str],
) -> None:
    look(Box(answer(over(1), over(2), complete=True), remains_of(run_id(1), run_id(2))))
    left = Box(answer(over(1), complete=True), remains_of(run_id(1)))
    look(left)
    seen = look(Box(answer(complete=True)), only=run_id(2))
    assert (seen.vanished, seen.unseen) == ((run_id(2),), "")
    (gone,) = [each for each in judge(PLACE, seen, {}, whole=False) if each.holds != YES]
    assert f"holdfast teardown gpu1 --leave {run_id(2)} --reason TEXT" in gone.command
    assert "is not there" in look(Box(answer(complete=True)), only=run_id(7)).unseen


def test_what_this_desk_has_removed_has_not_vanished(isolated_environment: dict[str, str]) -> None:
    with claim_order("gpu1", "digits", "0" * 64, "") as claim:
        note_step("gpu1", Step.TAKEN, claim.run_id)
    look(Box(answer(over(run_id=claim.run_id), over(1), complete=True), remains_of(run_id(1), claim.run_id)))
    left = Box(answer(over(1), complete=True), remains_of(run_id(1)))
    removed = Box(answer(absent=[claim.run_id]))
    look_again([PLACE], open_box=lambda _: removed, removed=[claim.run_id])
    assert look(left).vanished == ()
    assert list_orders(read_journal("gpu1"))[claim.run_id].step is Step.REMOVED


def test_what_had_vanished_before_it_was_to_be_removed_has_vanished(isolated_environment: dict[str, str]) -> None:
    with claim_order("gpu1", "digits", "0" * 64, "") as claim:
        note_step("gpu1", Step.TAKEN, claim.run_id)
    look(Box(answer(over(run_id=claim.run_id), over(1), complete=True), remains_of(run_id(1), claim.run_id)))
    left = Box(answer(over(1), complete=True), remains_of(run_id(1)))
    assert look(left).vanished == (claim.run_id,)
    look_again([PLACE], open_box=lambda _: Box(answer(absent=[claim.run_id])), removed=[claim.run_id])
    assert look(left).vanished == (claim.run_id,)


def test_where_it_cannot_be_read_which_runs_it_had_nothing_is_seen(isolated_environment: dict[str, str]) -> None:
    box = Box(answer(over(1), complete=True), remains_of(run_id(1)))
    look(box)
    with open(f"{places_directory()}/gpu1/runs.tsv", "ab") as file:
        file.write(f"{run_id(2)}\tended\t2026".encode())
    for _ in range(2):
        assert "1 of 2 lines are damaged; `holdfast reconcile gpu1` mends it" in look(box).unseen
    rebuild(read_answer("gpu1", answer(over(1), complete=True), at=utc_now()))
    assert not look(box).unseen


@pytest.mark.parametrize(
    ("found", "vanished"),
    [
        ({}, False),
        ({"attempt": 2}, True),
        ({"damaged": (Tried("a.csv", "read", "a row is short"),)}, True),
        ({"untried": Tried("checkpoints/9.msgpack", "not load-tested", "")}, True),
    ],
)
def test_what_is_gone_and_proven_to_be_at_home_has_not_vanished(
    isolated_environment: dict[str, str], found: dict[str, Any], vanished: bool
) -> None:
    """A receipt of all of it, of the attempt that was seen last, opens the gate as for a run that is there."""
    look(Box(answer(over(1), over(2), complete=True), remains_of(run_id(1), run_id(2))))
    home = replace(receipt(run_id(2)), **found)
    left = Box(answer(over(1), complete=True), remains_of(run_id(1)))
    seen = look(left, prove_copy=lambda _place, _run: Proof(home))
    assert seen.vanished == ((run_id(2),) if vanished else ())
    assert (run_id(2) in seen.proofs) != vanished
    assert look(left, prove_copy=lambda _place, _run: Proof(home, "it was changed")).vanished == (run_id(2),)


def test_runs_of_an_earlier_rent_have_not_vanished(isolated_environment: dict[str, str]) -> None:
    box = Box(answer(over(1), complete=True), remains_of(run_id(1)))
    look(box)
    place = replace(PLACE, rent=Rent(since="2999-01-01T00:00:00.000Z"))
    seen = look_at(place, open_box=lambda _: Box(answer(complete=True)), prove_home=prove_home, code_at=())
    assert seen.vanished == ()


@pytest.mark.parametrize(
    ("groups", "queued"),
    [
        ([], ()),
        ([{"name": "night", "counts": {"done": 3, "failed": 1}}], ()),
        ([{"name": "night", "counts": {"queued": 3, "running": 1}}], ("night: 3 queued, 1 running",)),
        ([{"name": "a\x1b[2J", "counts": {"held": 1}}], ("a\\x1b[2J: 1 held",)),
    ],
)
def test_jobs_that_wait_or_run_are_read_of_the_groups(groups: object, queued: tuple[str, ...]) -> None:
    assert read_queue(Done(0, json.dumps({"groups": groups}).encode(), b"")) == queued


@pytest.mark.parametrize(
    "out", [b"", b"[]", b"{}", b'{"groups": 7}', b'{"groups": [7]}', b'{"groups": [{"name": "a"}]}']
)
def test_an_answer_that_is_no_queue_is_refused(out: bytes) -> None:
    with pytest.raises(WireError):
        read_queue(Done(0, out, b"Permission denied"))
    with pytest.raises(WireError):
        read_queue(Done(1, b'{"groups": []}', b""))


@pytest.mark.requirement("VRFY-06")
def test_a_commit_is_found_where_git_has_it_and_whether_a_remote_has_it(
    isolated_environment: dict[str, str], tmp_path: Path
) -> None:
    def git(*words: str, cwd: Path) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")
        return subprocess.run(["git", *who, *words], cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()

    there, here = tmp_path / "there.git", tmp_path / "here"
    git("init", "--bare", str(there), cwd=tmp_path)
    git("init", str(here), cwd=tmp_path)
    git("commit", "--allow-empty", "-m", "one", cwd=here)
    commit = git("rev-parse", "HEAD", cwd=here)
    assert find_commit(str(here), commit).endswith("pushed nowhere")
    git("remote", "add", "origin", str(there), cwd=here)
    git("push", "origin", "HEAD:main", cwd=here)
    assert find_commit(str(here), commit).endswith("pushed to origin/main")
    assert find_commit(str(here), "c" * 40) == ""
    assert find_commit(str(here), "--help") == ""
    assert find_commit(str(tmp_path), commit) == ""


def test_a_run_that_was_never_pulled_has_no_proof(isolated_environment: dict[str, str]) -> None:
    found = prove_home(PLACE, run_id(1))
    assert (found.receipt, found.unknown) == (None, False)
    assert "was not pulled" in found.problem


def test_an_order_that_was_never_sent_keeps_no_machine(isolated_environment: dict[str, str]) -> None:
    """A machine that let nobody in was ordered to do something, and nothing of it is on the way: it can be given up."""
    box = Box(answer(complete=True))
    with claim_order("gpu1", "digits", "0" * 64, "") as claim:
        assert look(box).unanswered == (claim.run_id,)
    assert look(box).unanswered == ()
    with claim_order("gpu1", "digits", "0" * 64, "") as claim:
        note_step("gpu1", Step.SENT, claim.run_id)
    assert look(box).unanswered == (claim.run_id,)
    note_step("gpu1", Step.SENT, claim.run_id, message="no space left")
    assert look(box).unanswered == ()
