"""Cards set aside on this host: whose word binds whom, what damage does, how it is taken back."""

from __future__ import annotations

import glob
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.host.files import files
from holdfast.host.gpu import quarantine as module
from holdfast.host.gpu.quarantine import (
    clear,
    cleared_since,
    describe_others,
    list_quarantined,
    mark_quarantined,
    quarantine,
)
from holdfast.host.lease.area import LeaseArea, open_area
from holdfast.model.errors import NotPermitted, UsageError
from holdfast.model.gpu import Card, Inventory, InventorySource
from tests.host.families import become
from tests.host.lease_support import NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.process, pytest.mark.requirement("GPUH-09")]

UUID = "GPU-fa4e0000-0000-4000-8000-000000000000"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another account")


@pytest.fixture
def area() -> Iterator[LeaseArea]:
    """As on a real box: open to all, and not under /tmp."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir="/dev/shm"))
    path.chmod(0o755)
    yield open_area(str(path / "area"), environ={})
    shutil.rmtree(path)


def box(*uuids: str) -> Inventory:
    return Inventory(InventorySource.NVML, tuple(Card(index, uuid, "A100") for index, uuid in enumerate(uuids)))


def as_nobody(work: Callable[[], object]) -> None:
    def inside() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        work()

    assert os.waitpid(become(inside), 0)[1] == 0


def test_a_card_is_set_aside_with_its_evidence_until_it_is_cleared(area: LeaseArea) -> None:
    said = quarantine(UUID, "Xid 95", ["NVRM: Xid 95"], area=area)
    (found,) = list_quarantined(area)
    assert found == said
    assert found.binding
    assert (found.reason, found.evidence, found.uid) == ("Xid 95", ("NVRM: Xid 95",), os.geteuid())
    first, second = mark_quarantined(box(UUID, "GPU-2"), area).cards
    assert first.quarantined.startswith("Xid 95 (set aside by ")
    assert second.quarantined == ""
    assert clear(UUID, area=area) == (said,)
    assert list_quarantined(area) == ()
    assert mark_quarantined(box(UUID), area).cards[0].quarantined == ""


def test_clearing_says_since_when_older_errors_do_not_count(area: LeaseArea) -> None:
    assert cleared_since(UUID, area) == 0.0
    said = quarantine(UUID, "Xid 95", area=area)
    assert cleared_since(UUID, area) == 0.0
    clear(UUID, area=area)
    assert cleared_since(UUID, area) >= said.monotonic_s
    assert cleared_since("GPU-2", area) == 0.0


def test_a_clearing_of_an_earlier_boot_says_nothing_of_this_ones_log(
    area: LeaseArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_BOOT_ID", "an-earlier-boot")
    clear(UUID, area=area)
    monkeypatch.delenv("HOLDFAST_BOOT_ID")
    assert cleared_since(UUID, area) == 0.0


def test_it_outlives_a_reboot(area: LeaseArea, monkeypatch: pytest.MonkeyPatch) -> None:
    quarantine(UUID, "Xid 79", area=area)
    monkeypatch.setenv("HOLDFAST_BOOT_ID", "a-later-boot")
    assert mark_quarantined(box(UUID), area).cards[0].quarantined


@pytest.mark.parametrize("uuid", ["", "../etc", "a/b", ".hidden", "GPU 1"])
def test_only_a_uuid_becomes_a_file_name(area: LeaseArea, uuid: str) -> None:
    with pytest.raises(UsageError, match="not a card's UUID"):
        quarantine(uuid, "reason", area=area)
    assert os.listdir(area.directories[0]) == []


def find_word(area: LeaseArea, uid: int) -> str:
    """The file of an account's word on the card."""
    (path,) = glob.glob(f"{area.directories[0]}/quarantine-{UUID}.{uid}.*.json")
    return path


def test_a_reason_is_needed(area: LeaseArea) -> None:
    with pytest.raises(UsageError, match="for a reason"):
        quarantine(UUID, "  ", area=area)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"uuid": 3}', b"\xff" * 100, b"x" * 200_000])
def test_a_damaged_word_of_ours_still_stands_and_is_told(area: LeaseArea, data: bytes) -> None:
    quarantine(UUID, "Xid 95", area=area)
    path = find_word(area, os.geteuid())
    Path(path).write_bytes(data)
    assert "cannot be read" in mark_quarantined(box(UUID), area).cards[0].quarantined
    assert any(path in warning for warning in describe_others(area))
    clear(UUID, area=area)
    assert mark_quarantined(box(UUID), area).cards[0].quarantined == ""


def test_a_planted_link_or_directory_is_no_word(area: LeaseArea, tmp_path: Path) -> None:
    record = {"schema": 1, "uuid": UUID, "reason": "x", "user": "u", "uid": os.geteuid(), "at": "", "boot_id": ""}
    target = tmp_path / "target"
    target.write_text(json.dumps({**record, "monotonic_s": 1.0}))
    os.symlink(target, f"{area.directories[0]}/quarantine-{UUID}.{os.geteuid()}.json")
    os.mkdir(f"{area.directories[0]}/quarantine-GPU-2.{os.geteuid()}.json")
    assert list_quarantined(area) == ()
    assert len(describe_others(area)) == 2


def test_a_record_under_another_cards_name_is_not_trusted(area: LeaseArea) -> None:
    quarantine(UUID, "Xid 95", area=area)
    place = area.directories[0]
    os.rename(find_word(area, os.geteuid()), f"{place}/quarantine-GPU-2.{os.geteuid()}.json")
    assert list_quarantined(area) == ()
    assert any("not trusted" in warning for warning in describe_others(area))


@as_root
def test_a_stranger_binds_nobody_but_himself_and_is_shown(area: LeaseArea) -> None:
    def work() -> None:
        quarantine(UUID, "I want it", area=area)
        assert mark_quarantined(box(UUID), area).cards[0].quarantined

    as_nobody(work)
    assert mark_quarantined(box(UUID), area).cards[0].quarantined == ""
    (warning,) = describe_others(area)
    assert f"has set card {UUID} aside: I want it; that binds only nobody" in warning


@as_root
def test_the_word_of_root_binds_everybody_and_only_root_takes_it_back(area: LeaseArea) -> None:
    quarantine(UUID, "Xid 79", area=area)

    def work() -> None:
        assert "Xid 79" in mark_quarantined(box(UUID), area).cards[0].quarantined
        with pytest.raises(NotPermitted, match="was set aside by root: Xid 79"):
            clear(UUID, area=area)
        assert "Xid 79" in mark_quarantined(box(UUID), area).cards[0].quarantined

    as_nobody(work)
    clear(UUID, area=area)
    as_nobody(lambda: _require(not mark_quarantined(box(UUID), area).cards[0].quarantined))


@as_root
def test_a_stranger_cannot_give_a_file_of_roots_the_name_of_roots_word(area: LeaseArea) -> None:
    """Linking is allowed to whoever may write the file: then it is root's file under the stranger's name."""
    place = area.directories[0]
    Path(f"{place}/open to all").write_text("no record")
    os.chmod(f"{place}/open to all", 0o666)
    as_nobody(lambda: os.link(f"{place}/open to all", f"{place}/quarantine-{UUID}.0.json"))
    assert list_quarantined(area) == ()
    assert mark_quarantined(box(UUID), area).cards[0].quarantined == ""
    assert any(f"{UUID}.0.json" in warning for warning in describe_others(area))


@as_root
def test_whose_word_it_is_says_the_owner_of_the_file(area: LeaseArea) -> None:
    as_nobody(lambda: quarantine(UUID, "x", area=area))
    path = find_word(area, NOBODY)
    said = json.loads(Path(path).read_text())
    Path(path).write_text(json.dumps({**said, "user": "root", "reason": "a\nb" + "y" * 60_000}))
    (found,) = list_quarantined(area)
    assert found.user == "nobody"
    assert found.reason.startswith("a by")
    assert len(found.reason) == module.LONGEST_TEXT


@as_root
def test_files_of_strangers_are_not_opened_to_judge_a_card(area: LeaseArea, monkeypatch: pytest.MonkeyPatch) -> None:
    as_nobody(lambda: [quarantine(f"GPU-{number}", "x", area=area) for number in range(5)])
    quarantine(UUID, "Xid 79", area=area)
    opened: list[str] = []
    read = files.read_bytes

    def note(path: str, *, limit: int) -> bytes:
        opened.append(path)
        return read(path, limit=limit)

    monkeypatch.setattr(files, "read_bytes", note)
    assert mark_quarantined(box(UUID), area).cards[0].quarantined
    assert cleared_since(UUID, area) == 0.0
    assert opened == [find_word(area, 0)] * 2


@as_root
def test_root_clears_the_words_of_others(area: LeaseArea) -> None:
    as_nobody(lambda: quarantine(UUID, "slow", area=area))
    assert [record.reason for record in clear(UUID, area=area)] == ["slow"]
    assert list_quarantined(area) == ()


@as_root
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_nobody_keeps_another_from_its_word_by_a_name(area: LeaseArea, kind: str) -> None:
    path = Path(f"{area.directories[0]}/quarantine-{UUID}.{NOBODY}.json")
    path.write_text("mine") if kind == "file" else path.mkdir()

    def work() -> None:
        for reason in ("slow", "slower"):
            quarantine(UUID, reason, area=area)
        _require("slower" in mark_quarantined(box(UUID), area).cards[0].quarantined)
        _require(len(list_quarantined(area)) == 1)

    as_nobody(work)
    assert path.exists()


@as_root
def test_of_the_words_of_a_stranger_so_many_are_read(area: LeaseArea) -> None:
    def work() -> None:
        for number in range(module.MOST_FILES + 10):
            quarantine(f"GPU-{number}", "x", area=area)

    as_nobody(work)
    quarantine(UUID, "Xid 79", area=area)
    assert "Xid 79" in mark_quarantined(box(UUID), area).cards[0].quarantined
    assert len(list_quarantined(area)) == module.MOST_FILES + 1
    assert any("not all of them were read" in warning for warning in describe_others(area))


def test_no_area_means_no_word_and_none_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LEASE_DIR", str(tmp_path / "none"))
    assert list_quarantined() == ()
    assert mark_quarantined(box(UUID)) == box(UUID)
    assert describe_others() == ()
    assert not (tmp_path / "none").exists()
    module.quarantine(UUID, "now there is one")
    assert len(list_quarantined()) == 1


def _require(condition: bool) -> None:
    assert condition
