"""The ledger: each lease once, by its owner, whatever others put there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.core.control_characters import one_line
from holdfast.host import clock
from holdfast.host.lease import force_release, leases, usage
from holdfast.host.lease.area import LeaseArea, open_area
from holdfast.host.lease.usage import (
    KEPT_MONTHS,
    UsageLedgers,
    describe_record,
    find_week_begin,
    ledger_stem,
    read_live,
    record_use,
)
from holdfast.host.process import processes
from holdfast.model.record import replace
from tests.host.lease_support import CARDS, NOBODY, Child, Line, hold, record, take

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another account")
UID = os.geteuid()


@pytest.fixture
def area() -> Iterator[LeaseArea]:
    """As on a real box: open to all, and not under /tmp."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir="/dev/shm"))
    path.chmod(0o755)
    yield open_area(str(path / "area"), environ={}, hand_written=str(path / "gpu_locks"))
    shutil.rmtree(path)


def ledger(area: LeaseArea, uid: int = UID) -> Path:
    """The account's ledger of this month, or where an older holdfast would have put it."""
    stem = ledger_stem(uid, clock.epoch_s())
    return next(Path(area.directories[0]).glob(f"{stem}.*.jsonl"), Path(area.directories[0]) / f"{stem}.jsonl")


def ago(seconds: float) -> str:
    return clock.format_utc(clock.epoch_s() - seconds)


def test_a_lease_is_one_line_of_its_owner_and_readable_for_everybody(area: LeaseArea) -> None:
    assert record_use(area, record(1, *CARDS[:2], since=ago(1800.0)))
    path = ledger(area)
    assert path.stat().st_mode & 0o777 == 0o644
    (line,) = map(json.loads, path.read_text().splitlines())
    assert (line["run"], line["attempt"], line["uid"], len(line["cards"])) == (record(1).run_id, 1, UID, 2)
    ((use,), wrong) = UsageLedgers().read(area, since_s=0.0)
    assert use.gpu_s == pytest.approx(3600.0, abs=5.0)
    assert use.user == processes.user_name(UID)
    assert wrong == ()


def test_a_line_that_is_written_twice_counts_once_and_a_torn_one_costs_only_itself(area: LeaseArea) -> None:
    record_use(area, record(1, since=ago(60.0)))
    with ledger(area).open("ab") as file:
        file.write(b'{"run": "torn')
    record_use(area, record(1, since=ago(60.0)))
    record_use(area, record(2, since=ago(60.0)))
    uses, _ = UsageLedgers().read(area, since_s=0.0)
    assert sorted(use.run_id for use in uses) == [record(1).run_id, record(2).run_id]


def test_a_wall_clock_that_jumps_changes_no_hours(area: LeaseArea) -> None:
    since = clock.boottime_ns() - 60 * 10**9
    jumped = record(1, since=ago(-7200.0), since_boot_ns=since)
    assert describe_record(jumped).gpu_s == pytest.approx(60.0, abs=5.0)
    # From an earlier boot only the wall clock tells.
    before = replace(jumped.supervisor, boot_id="another")
    assert describe_record(replace(jumped, since=ago(100.0), supervisor=before)).gpu_s == pytest.approx(100.0, abs=5.0)
    assert record_use(area, jumped)


def test_growing_ledgers_are_read_from_where_they_were(area: LeaseArea) -> None:
    ledgers = UsageLedgers()
    for number in range(1, 4):
        record_use(area, record(number, since=ago(60.0)))
        assert len(ledgers.read(area, since_s=0.0)[0]) == number
    # Replaced by a shorter one: read anew.
    ledger(area).unlink()
    record_use(area, record(9, since=ago(60.0)))
    assert [use.run_id for use in ledgers.read(area, since_s=0.0)[0]] == [record(9).run_id]
    assert ledgers.read(area, since_s=clock.epoch_s() + 1)[0] == ()
    assert ledgers.read(area, since_s=0.0, uids=frozenset({NOBODY}))[0] == ()


@pytest.mark.parametrize(
    "change",
    [
        {"uid": UID + 1},
        {"gpu_seconds": -1},
        {"gpu_seconds": 1e300},
        {"gpu_seconds": "nan"},
        {"from": "yesterday", "cards": None},
        {"attempt": "x"},
    ],
)
def test_a_line_that_cannot_be_is_left_out(area: LeaseArea, change: dict[str, object]) -> None:
    record_use(area, record(1, since=ago(60.0)))
    path = ledger(area)
    good = json.loads(path.read_text())
    path.write_text(json.dumps(good) + "\n" + json.dumps({**good, "run": "odd", **change}) + "\n[]\n5\n" + "[" * 5000)
    assert [use.run_id for use in UsageLedgers().read(area, since_s=0.0)[0]] == [record(1).run_id]


@needs_root
@pytest.mark.parametrize("how", ["forged", "link", "second name", "fifo"])
def test_what_somebody_else_put_there_is_named_and_not_counted(area: LeaseArea, how: str) -> None:
    """Written by another account for us; then our own note must not follow it either."""
    other = Path(area.directories[0]) / "other"
    other.write_text("")
    record_use(area, record(1, since=ago(60.0)))
    path = ledger(area)
    path.rename(other)
    if how == "forged":
        os.chown(other, NOBODY, NOBODY)
        other.rename(path)
    elif how == "link":
        path.symlink_to(other)
    elif how == "second name":
        os.link(other, path)
    else:
        os.mkfifo(path)
    before = other.read_bytes() if other.exists() else path.read_bytes()
    uses, wrong = UsageLedgers().read(area, since_s=0.0)
    assert uses == ()
    assert len(wrong) == 1
    assert path.name in wrong[0]
    assert record_use(area, record(2, since=ago(60.0)))
    assert [use.run_id for use in UsageLedgers().read(area, since_s=0.0)[0]] == [record(2).run_id]
    assert (other.read_bytes() if other.exists() else path.read_bytes()) == before


@needs_root
def test_each_account_writes_its_own_and_root_for_whom_it_clears_up(area: LeaseArea) -> None:
    def work(line: Line) -> None:
        line.send([record_use(area, record(1, since=ago(60.0))), record_use(area, replace(record(2), uid=0))])

    with Child(work, uid=NOBODY) as nobody:
        assert nobody.receive() == [True, False]
    assert ledger(area, NOBODY).stat().st_uid == NOBODY
    ledger(area, NOBODY).unlink()
    left = replace(record(3, since=ago(60.0)), uid=NOBODY)
    assert record_use(area, left)
    assert ledger(area, NOBODY).stat().st_uid == NOBODY
    assert [use.uid for use in UsageLedgers().read(area, since_s=0.0)[0]] == [NOBODY]


def test_a_lease_whose_supervisor_was_killed_is_written_down_by_whoever_clears_up(area: LeaseArea) -> None:
    with hold(area, 1, CARDS[0], since=ago(600.0)) as holder:
        assert holder.receive() == "held"
        live = read_live(area)
        assert [(use.run_id, use.live) for use in live] == [(record(1).run_id, True)]
        os.kill(holder.pid, signal.SIGKILL)
    (path,) = [path for path in Path(area.directories[0]).iterdir() if path.name.startswith("lease-")]
    # Its last sign of life was five minutes ago.
    os.utime(path, (clock.epoch_s() - 300.0,) * 2)
    force_release.remove_void_records(area)
    assert not path.exists()
    (use,) = UsageLedgers().read(area, since_s=0.0)[0]
    assert not use.exact
    assert use.gpu_s == pytest.approx(300.0, abs=10.0)
    assert read_live(area) == ()


def test_who_takes_the_card_next_writes_down_what_the_dead_one_used(area: LeaseArea) -> None:
    with hold(area, 1, CARDS[0], since=ago(60.0)) as holder:
        assert holder.receive() == "held"
    take(area, record(2, CARDS[0])).release()
    assert [use.run_id for use in UsageLedgers().read(area, since_s=0.0)[0]] == [record(1).run_id]


def test_a_lease_that_is_given_back_is_not_noted_by_the_lease_itself(area: LeaseArea) -> None:
    """A card that turned out to be busy under the lock was held for a second; the supervisor notes what was granted."""
    held = leases.acquire_lease(area, record(1))
    assert isinstance(held, leases.HeldLease)
    held.release()
    assert UsageLedgers().read(area, since_s=0.0) == ((), ())


def test_old_months_go_when_a_new_one_begins(area: LeaseArea) -> None:
    year = int(time.strftime("%Y")) - 2
    old = Path(area.directories[0]) / f"usage-{UID}.{year}01.jsonl"
    foreign = Path(area.directories[0]) / f"usage-{UID + 1}.{year}01.jsonl"
    for path in (old, foreign):
        path.write_text("")
    record_use(area, record(1, since=ago(60.0)))
    assert not old.exists()
    assert foreign.exists()
    assert KEPT_MONTHS < 24


def test_the_week_begins_on_monday() -> None:
    now = clock.epoch_s()
    monday = time.localtime(find_week_begin(now))
    assert (monday.tm_wday, monday.tm_hour, monday.tm_min, monday.tm_sec) == (0, 0, 0, 0)
    assert 0 <= now - find_week_begin(now) < 7 * 86400 + 7200


def test_a_month_that_has_not_come_is_not_read(area: LeaseArea) -> None:
    """Else an account could have any number of large ledgers read by whoever asks."""
    record_use(area, record(1, since=ago(60.0)))
    ledger(area).rename(f"{area.directories[0]}/{ledger_stem(UID, clock.epoch_s() + 90 * 86400.0)}.jsonl")
    assert UsageLedgers().read(area, since_s=0.0) == ((), ())


def test_a_month_that_two_runs_begin_at_once_is_counted_from_both_ledgers(area: LeaseArea) -> None:
    assert record_use(area, record(1, since=ago(60.0)))
    first = ledger(area)
    first.rename(f"{area.directories[0]}/away")
    assert record_use(area, record(2, since=ago(60.0)))
    Path(f"{area.directories[0]}/away").rename(first)
    uses, wrong = UsageLedgers().read(area, since_s=0.0)
    assert ({use.run_id for use in uses}, wrong) == ({record(1).run_id, record(2).run_id}, ())


@needs_root
@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_nobody_keeps_another_from_writing_its_use_down(area: LeaseArea, kind: str) -> None:
    path = Path(area.directories[0]) / f"{ledger_stem(NOBODY, clock.epoch_s())}.jsonl"
    if kind == "link":
        path.symlink_to("/nonexistent")
    else:
        path.mkdir() if kind == "directory" else path.touch()

    def work(line: Line) -> None:
        line.send(record_use(area, record(1, since=ago(60.0))))

    with Child(work, uid=NOBODY) as nobody:
        assert nobody.receive() is True
    uses, wrong = UsageLedgers().read(area, since_s=0.0)
    assert ([use.uid for use in uses], len(wrong)) == ([NOBODY], 1)


def test_of_a_ledger_so_many_lines_are_read(area: LeaseArea, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MOST_LINES", 10)
    assert record_use(area, record(1, since=ago(60.0)))
    (line,) = ledger(area).read_text().splitlines()
    ledger(area).write_text("\n" * 8 + f"{line}\n{{\n" + f"{line}\n".replace(record(1).run_id, record(2).run_id))
    uses, (wrong,) = UsageLedgers().read(area, since_s=0.0)
    assert [use.run_id for use in uses] == [record(1).run_id]
    assert f"of {processes.user_name(UID)}: too many lines or cards; not all of them were read" in wrong


def test_of_the_ledgers_of_an_account_so_many_cards_are_looked_at(
    area: LeaseArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no list of as many cards as a lease has is not even looked at: it was, text by text, by all in line."""
    monkeypatch.setattr(usage, "MOST_CARDS", 1000)
    looked: list[str] = []

    def look(text: str, longest: int) -> str:
        looked.append(text)
        return one_line(text, longest)

    monkeypatch.setattr(usage, "one_line", look)
    assert record_use(area, record(1, *CARDS[:2], since=ago(60.0)))
    good = json.loads(ledger(area).read_text())
    lines = [{**good, "run": f"r{number}", "cards": [""] * 200} for number in range(4)]
    lines += [{**good, "run": "odd", "cards": odd} for odd in ("x" * 500, dict.fromkeys("abc"), [""] * 300)]
    ledger(area).write_text("".join(json.dumps(line) + "\n" for line in lines))
    Path(area.directories[0], f"{ledger_stem(UID, clock.epoch_s())}.z.jsonl").write_text(json.dumps(good) + "\n")
    ledgers = UsageLedgers()
    uses, (wrong,) = ledgers.read(area, since_s=0.0)
    assert ([use.run_id for use in uses], looked.count("")) == ([f"r{number}" for number in range(4)], 800)
    assert ".z.jsonl" in wrong
    assert ledgers.read(area, since_s=0.0) == (uses, (wrong,))
    assert looked.count("") == 800
