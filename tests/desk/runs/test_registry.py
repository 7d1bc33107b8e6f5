"""What was last seen of runs elsewhere: found again by id and name, never bent by silence, and lost without loss."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.desk.orders.journal import Step, claim_order, note_step
from holdfast.desk.places.facts import PROOFS, forget_place
from holdfast.desk.runs import registry
from holdfast.desk.runs.answer import read_answer
from holdfast.desk.runs.listing import list_places
from holdfast.desk.runs.registry import (
    ABSENT,
    Contact,
    find,
    list_sent,
    list_unfinished,
    read_contact,
    read_sightings,
    record_poll,
)
from holdfast.host.clock import format_utc
from holdfast.model.sighting import Poll, Reach
from tests.desk.runs.sightings import answer, over, row, run_id
from tests.waiting import wait_until

pytestmark = pytest.mark.process


def at(second: int) -> str:
    return f"2026-11-22T10:00:{second:02d}.000Z"


def see(second: int, *rows: Any, place: str = "gpu1", asked: tuple[str, ...] = (), **fields: Any) -> Poll:
    poll = read_answer(place, answer(*rows, **fields), at=at(second), asked=asked)
    record_poll(poll)
    return poll


def known(text: str) -> list[tuple[str, str]]:
    return [(item.place, item.run_id) for item in find(text)]


def test_a_run_is_found_by_id_name_and_beginning_newest_first() -> None:
    see(1, row(1), over(2), row(3, "eval"))
    see(1, row(4), place="gpu2")
    assert known(run_id(1)) == [("gpu1", run_id(1))]
    assert known("digits") == [("gpu2", run_id(4)), ("gpu1", run_id(2)), ("gpu1", run_id(1))]
    assert known("20261120-100003") == [("gpu1", run_id(3, "eval"))]
    assert known("20261120-1000") == [
        ("gpu2", run_id(4)),
        ("gpu1", run_id(3, "eval")),
        ("gpu1", run_id(2)),
        ("gpu1", run_id(1)),
    ]
    for nothing in ("", "nothing", "../gpu1", "running", "/runs", "dig*", "a b", "\udc80", "x" * 5000):
        assert known(nothing) == []


def test_the_same_id_at_two_places_is_two_runs() -> None:
    see(1, row(1))
    see(1, over(1), place="gpu2")
    assert known(run_id(1)) == [("gpu1", run_id(1)), ("gpu2", run_id(1))]
    assert [s.ended for name in ("gpu1", "gpu2") for s in read_sightings(name)] == [False, True]


def test_words_for_a_tab() -> None:
    see(1, row(1), row(2))
    assert registry.complete("gp") == [
        ("gpu1:digits", f"newest: {run_id(2)}"),
        (f"gpu1:{run_id(2)}", ""),
        (f"gpu1:{run_id(1)}", ""),
    ]
    assert registry.complete("gpu1:d") == [("gpu1:digits", f"newest: {run_id(2)}")]
    assert registry.complete("other:") == []


@pytest.mark.requirement("XPORT-09")
@pytest.mark.requirement("BSSH-04")
def test_XPORT_09_silence_of_any_length_changes_no_sighting() -> None:
    see(1, row(1), over(2))
    before = read_sightings("gpu1")
    for second in range(2, 50):
        why = ("dns", "refused", "timed out", "banner", "auth", "host key", "cut_off")[second % 7]
        record_poll(Poll("gpu1", at(second), unreachable="it does not answer", why=why))
    assert read_sightings("gpu1") == before
    contact = read_contact("gpu1")
    assert (contact.last_contact, contact.failures, contact.failed_at, contact.why) == (at(1), 48, at(49), "dns")
    see(55, row(1))
    assert read_contact("gpu1") == Contact(last_contact=at(55))


def test_a_place_that_failed_is_asked_again_later_and_later() -> None:
    assert Contact().is_due(0)
    now = 1_800_000_000.0
    for failures, pause in ((1, 15), (2, 30), (3, 60), (5, 240), (6, 300), (500, 300)):
        contact = Contact(failures=failures, failed_at=format_utc(now))
        assert not contact.is_due(now + pause - 1)
        assert contact.is_due(now + pause)
        assert contact.is_due(now - 3600)  # the clock was set
    assert Contact(failures=1, failed_at="rubbish").is_due(now)


def test_absent_is_not_ended() -> None:
    see(1, row(1), over(2))
    see(2, absent=[run_id(1), run_id(2)], asked=(run_id(1), run_id(2)))
    after, left = read_sightings("gpu1")
    assert (left.run_id, left.condition, left.ended, left.seen_at) == (run_id(1), ABSENT, False, at(2))
    assert "it was running at" in left.reason
    assert (after.run_id, after.condition, after.ended, after.last_there) == (run_id(2), ABSENT, True, at(1))
    assert f"it was succeeded at {at(1)}, and is not there any more" == after.reason
    see(3, absent=[run_id(1)], asked=(run_id(1),))
    assert read_sightings("gpu1") == [after, left]
    see(4, row(1))
    assert read_sightings("gpu1")[1].condition == "running"


def test_a_runs_root_that_is_not_mounted_is_not_an_absent_run() -> None:
    see(1, row(1))
    see(2, absent=[run_id(1)], missing_roots=["/runs"], asked=(run_id(1),))
    (left,) = read_sightings("gpu1")
    assert (left.condition, left.seen_at, left.reach) == ("running", at(1), Reach.UNREACHABLE)
    assert left.reason == "/runs cannot be read there"


def test_an_older_look_never_replaces_a_newer_one() -> None:
    see(5, over(1))
    see(4, row(1))
    see(3, absent=[run_id(1)], asked=(run_id(1),))
    (seen,) = read_sightings("gpu1")
    assert (seen.ended, seen.seen_at) == (True, at(5))


def test_a_look_of_a_clock_that_was_ahead_is_replaced_by_the_next_one() -> None:
    ahead = "2099-01-01T00:00:00.000Z"
    for poll in (read_answer("gpu1", answer(row(1), row(2)), at=ahead, asked=()), Poll("gpu2", ahead)):
        record_poll(poll)
    see(1, over(1), absent=[run_id(2)], asked=(run_id(2),))
    assert [(s.condition, s.seen_at) for s in read_sightings("gpu1")] == [(ABSENT, at(1)), ("succeeded", at(1))]
    record_poll(Poll("gpu2", at(1)))
    assert [read_contact(name).last_contact for name in ("gpu1", "gpu2")] == [at(1), at(1)]
    see(0, row(1))
    assert read_sightings("gpu1")[1].condition == "succeeded"


def test_an_order_without_an_answer_may_be_a_run_until_it_was_seen_as_one() -> None:
    with claim_order("gpu1", "digits", "0" * 64, "") as claim:
        assert (list_sent("gpu1"), list_sent("gpu1", also_being_sent=True)) == ([], [claim.run_id])
    assert list_sent("gpu1", also_being_sent=True) == []
    note_step("gpu1", Step.SENT, claim.run_id)
    assert list_sent("gpu1") == [claim.run_id]
    see(1, over(run_id=claim.run_id))
    assert list_sent("gpu1", also_being_sent=True) == []


def test_a_run_that_a_place_has_just_taken_is_known() -> None:
    registry.record_taken("gpu1", run_id(1))
    assert (known("digits"), list_unfinished("gpu1")) == ([("gpu1", run_id(1))], [run_id(1)])


def test_it_stays_small() -> None:
    names = [f"20261120-{100000 + number}-d-0a1b" for number in range(3000)]
    see(1, *(over(run_id=name) for name in names[:1000]))
    assert len(read_sightings("gpu1")) == registry.MOST_ENDED
    assert read_sightings("gpu1")[0].run_id == names[999]
    see(2, *(row(run_id=name) for name in names))
    assert len(read_sightings("gpu1")) == registry.MOST_RUNS
    assert list_unfinished("gpu1")[0] == names[-1]


@pytest.mark.parametrize("damage", [b"", b"\xff\x00rubbish\n\n\t\t\t", b"20261120-100001-digits-0a1b\tlive\t{\n", b"["])
def test_a_damaged_cache_is_an_empty_one(damage: bytes) -> None:
    see(1, row(1))
    directory = Path(registry.places_directory()) / "gpu1"
    for name in (registry.RUNS, registry.REACH):
        (directory / name).write_bytes(damage)
    assert (read_sightings("gpu1"), read_contact("gpu1")) == ([], Contact())
    see(2, row(2))
    assert known(run_id(2)) == [("gpu1", run_id(2))]


def test_a_line_of_another_place_is_not_believed() -> None:
    see(1, row(1))
    source = Path(registry.places_directory()) / "gpu1" / registry.RUNS
    (source.parent.parent / "gpu2").mkdir()
    (source.parent.parent / "gpu2" / registry.RUNS).write_bytes(source.read_bytes())
    assert read_sightings("gpu2") == []


def test_without_a_state_directory_it_is_done_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    see(1, row(1))
    assert (known("digits"), registry.list_seen_places(), read_contact("gpu1")) == ([], [], Contact())


def test_a_place_of_which_only_proofs_are_left_is_no_place_any_more() -> None:
    see(1, over(1))
    see(1, over(2), place="gpu2")
    for proof in PROOFS:
        (Path(registry.places_directory()) / "gpu1" / proof).mkdir()
    assert registry.list_seen_places() == ["gpu1", "gpu2"]
    assert len(forget_place("gpu1")) == len(PROOFS)
    assert registry.list_seen_places() == ["gpu2"]
    assert [place.name for place in list_places()] == ["gpu2"]


def test_what_is_rebuilt_is_what_the_box_has_and_what_it_had() -> None:
    see(1, row(1), row(2), over(3))
    source = Path(registry.places_directory()) / "gpu1" / registry.RUNS
    source.write_bytes(source.read_bytes() + f"{run_id(5)}\tended\t{at(1)}\t{{\n".encode())
    registry.rebuild(read_answer("gpu1", answer(row(1), over(4), complete=True), at=at(2)))
    conditions = {s.run_id: (s.condition, s.ended) for s in read_sightings("gpu1")}
    assert conditions == {
        run_id(4): ("succeeded", True),
        run_id(3): (ABSENT, True),
        run_id(2): (ABSENT, False),
        run_id(1): ("running", False),
    }
    assert not registry.find_damage("gpu1")


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.desk.runs.test_registry import see, row
number = 0
while True:
    number += 1
    see(number % 60, *(row(k, step=number) for k in range(40)))
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_kill_while_recording_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    see(1, *(row(k) for k in range(40)))
    top = str(Path(__file__).parents[3])
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    for wait in (1, 2, 3, 5):
        writer = subprocess.Popen([sys.executable, str(script), top], stdout=subprocess.PIPE, env=os.environ)
        assert writer.stdout is not None
        for _ in range(wait):
            assert writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        seen = read_sightings("gpu1")
        assert len(seen) == 40
        assert len({sighting.row["step"] for sighting in seen if sighting.row}) == 1
    see(59, row(50))
    wait_until(lambda: known(run_id(50)), what="the lock of the dead is free")


def test_somebody_stopped_with_the_lock_delays_nobody_for_long() -> None:
    see(1, row(1))
    with registry._locked(f"{registry.places_directory()}/gpu1"):
        see(2, row(2))  # answers, and keeps nothing
    assert known(run_id(2)) == []
