"""Lock files that people wrote by hand, and ours beside them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.host.lease import force_release, foreign_locks, leases
from holdfast.host.lease.area import LeaseArea, open_area
from holdfast.host.process.processes import identify_self
from holdfast.model.lease import Witness
from tests.host.lease_support import CARDS, hold, record, refused, slice_of, take

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def by_hand(tmp_path: Path) -> Path:
    path = tmp_path / "gpu_locks"
    path.mkdir()
    return path


@pytest.fixture
def area(by_hand: Path, isolated_environment: dict[str, str]) -> LeaseArea:
    return open_area(hand_written=str(by_hand))


@pytest.mark.requirement("B-02")
def test_a_hand_written_lock_file_is_honoured_and_its_author_named(area: LeaseArea, by_hand: Path) -> None:
    path = by_hand / "gpu_0.lock"
    path.write_text("anna 2026-11-20 10:00 train.py\x1b[31m\nmore\n")
    (busy,) = refused(area, record(1, CARDS[0]))
    assert busy.witness is Witness.FOREIGN_LOCK
    assert "anna 2026-11-20 10:00 train.py" in busy.holder
    assert "\x1b" not in busy.holder
    assert busy.since is not None
    assert path.exists()
    take(area, record(1, CARDS[1])).release()


def test_whatever_has_that_name_counts(area: LeaseArea, by_hand: Path, tmp_path: Path) -> None:
    (by_hand / "gpu_0.lock").mkdir()
    (by_hand / "gpu_1.lock").symlink_to(tmp_path / "nowhere")
    os.mkfifo(by_hand / "gpu_2.lock")
    (by_hand / "gpu_3.lock").touch()
    for card in CARDS[:4]:
        (busy,) = refused(area, record(1, card))
        assert f"gpu_{card.index}.lock" in busy.holder


def test_who_takes_a_lease_over_removes_the_files_that_were_published_for_it(area: LeaseArea, by_hand: Path) -> None:
    first = take(area, record(1, CARDS[0]))
    second = leases.adopt_lease(area, first.record, [identify_self()])
    first.close()
    assert os.listdir(by_hand) == ["gpu_0.lock"]
    second.release()
    assert os.listdir(by_hand) == []


def test_a_lease_is_published_for_scripts_and_removed_on_release(area: LeaseArea, by_hand: Path) -> None:
    held = take(area, record(1, CARDS[0], CARDS[2]))
    assert sorted(os.listdir(by_hand)) == ["gpu_0.lock", "gpu_2.lock"]
    text = (by_hand / "gpu_0.lock").read_text()
    assert held.record.run_id in text
    assert f"pid {os.getpid()}" in text
    assert (by_hand / "gpu_0.lock").stat().st_mode & 0o777 == 0o644
    held.release()
    assert os.listdir(by_hand) == []


def test_a_file_that_replaced_ours_is_left_alone(area: LeaseArea, by_hand: Path) -> None:
    held = take(area, record(1, CARDS[0]))
    (by_hand / "gpu_0.lock").write_text("anna took over\n")
    held.release()
    assert (by_hand / "gpu_0.lock").read_text() == "anna took over\n"


def test_nothing_is_published_where_nobody_looks_nor_for_simulated_cards(area: LeaseArea, by_hand: Path) -> None:
    held = take(area, record(1, CARDS[0], simulated=True))
    assert os.listdir(by_hand) == []
    held.release()
    by_hand.rmdir()
    take(area, record(1, CARDS[0])).release()
    assert not by_hand.exists()


@pytest.mark.requirement("LEASE-02", "B-08")
def test_what_a_killed_run_published_holds_nothing_and_is_swept(area: LeaseArea, by_hand: Path) -> None:
    with hold(area, 1, CARDS[0]) as holder:
        assert holder.receive() == "held"
        assert force_release.remove_void_records(area) == ()
        holder.kill()
    assert (by_hand / "gpu_0.lock").exists()
    held = take(area, record(2, CARDS[0]))
    assert held.record.run_id in (by_hand / "gpu_0.lock").read_text()
    held.release()
    with hold(area, 3, CARDS[0]) as holder:
        assert holder.receive() == "held"
    assert str(by_hand / "gpu_0.lock") in force_release.remove_void_records(area)


def test_runs_beside_each_other_do_not_take_each_others_file(area: LeaseArea, by_hand: Path) -> None:
    first, second = take(area, record(1, slice_of(CARDS[0], 1))), take(area, record(2, slice_of(CARDS[0], 2)))
    assert first.record.run_id in (by_hand / "gpu_0.lock").read_text()
    second.release()
    assert (by_hand / "gpu_0.lock").exists()
    first.release()
    assert not (by_hand / "gpu_0.lock").exists()


def test_a_link_in_place_of_the_directory_is_not_written_through(by_hand: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(by_hand)
    assert foreign_locks.publish_lock(str(link), 0, record(1)) is None
    assert os.listdir(by_hand) == []
