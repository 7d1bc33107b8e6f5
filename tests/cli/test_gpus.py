"""``holdfast gpus``: who holds what, why a card is not to be had; by the real NVML path and simulated."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

import pytest

from holdfast.host.lease.area import open_area
from holdfast.model.errors import NotPermitted
from holdfast.model.ids import name_of
from tests.cli.live import live_run
from tests.cli.queues import say
from tests.fakes.nvml import GIB
from tests.host.lease_support import CARDS, record, take
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command
    from tests.fakes.nvml import FakeNvml

pytestmark = pytest.mark.cli

SIMULATED = {"HOLDFAST_SIMULATED_GPUS": "2x24GiB"}


@pytest.mark.slow
def test_a_box_without_cards_is_no_error(holdfast: Command) -> None:
    done = holdfast("gpus", env={"LD_LIBRARY_PATH": None})
    assert done.code == 0
    assert "no cards" in done.out
    assert holdfast("gpus", "--json").json()["cards"] == []


def test_looking_makes_no_lease_directory(holdfast: Command, tmp_path: Path) -> None:
    place = str(tmp_path / "nobody-leased")
    assert holdfast("gpus", env={**SIMULATED, "HOLDFAST_LEASE_DIR": place}).code == 0
    assert not os.path.exists(place)


@pytest.mark.slow
def test_simulated_cards_are_marked_in_title_and_rows(holdfast: Command) -> None:
    done = holdfast("gpus", env=SIMULATED)
    title, _, *rows = done.out.splitlines()
    assert title.startswith("SIMULATED")
    assert len(rows) == 2
    assert all("simulated" in row.lower() for row in rows)
    value = holdfast("gpus", "--json", env=SIMULATED).json()
    assert value["simulated"] is True
    assert all(card["simulated"] and card["available"] for card in value["cards"])


@pytest.mark.slow
@pytest.mark.requirement("LEASE-04", "ETIQ-04")
def test_LEASE_04_a_lease_shows_every_field(holdfast: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "2x24GiB")
    with live_run(holdfast, "--gpus", "1", "--idle-window", "0s", "--name", "leased") as run:
        cards = holdfast("gpus", "--json").json()["cards"]
        held = [card for card in cards if card["lease"]]
        assert len(held) == 1
        lease = held[0]["lease"]
        assert lease["run_id"] == run.run_id
        assert lease["phase"] == "run"
        for field in ("user", "host", "since", "supervisor", "devices", "command", "run_dir", "members"):
            assert lease[field], field
        assert held[0]["available"] is False
        text = holdfast("gpus").out
        assert run.run_id in text
        assert "phase run" in text
        shown = holdfast("show", run.run_id).out
        assert "SIMULATED" in shown
    assert all(card["lease"] is None for card in holdfast("gpus", "--json").json()["cards"])


@pytest.mark.gotcha("U11")
@pytest.mark.requirement("ETIQ-04", "LEASE-12", "LEASE-15", "B-19")
def test_LEASE_12_strangers_and_ghosts_are_told_apart(holdfast: Command, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(2)
    fake_nvml.run_on(0, (os.getpid(), 12 * GIB))
    fake_nvml.run_on(1, (4_194_302, 3 * GIB))
    done = holdfast("gpus")
    assert done.code == 0
    assert f"pid {os.getpid()}" in done.out
    assert "no holdfast run" in done.out
    first, second = holdfast("gpus", "--json").json()["cards"]
    assert first["processes"][0]["kind"] == "unmanaged"
    assert first["processes"][0]["user"]
    assert first["processes"][0]["age_s"] is not None
    assert second["processes"][0]["kind"] in ("ghost", "other_namespace", "unknown")
    assert not first["available"]
    assert not second["available"]


def test_a_lost_card_says_so_and_the_other_is_shown(holdfast: Command, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(2)
    fake_nvml.lose(0)
    first, second = holdfast("gpus", "--json").json()["cards"]
    assert not first["available"]
    assert any("lost" in reason for reason in first["unavailable"])
    assert second["available"]


@pytest.mark.requirement("LEASE-19")
def test_a_driver_that_blocks_does_not_block_the_answer(holdfast: Command, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.hang("nvmlInit_v2")
    fake_nvml.hang("nvmlInitWithFlags")
    done = holdfast("gpus", "--json", timeout_s=LIMIT_S)
    assert done.code == 69, "that no card was read does not say that there is none"
    value = done.json()
    assert value["complete"] is False
    assert value["reason"]


@pytest.mark.slow
def test_slices_have_rows_of_their_own(holdfast: Command, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.slice(0, "MIG-aaaa", "MIG-bbbb")
    cards = holdfast("gpus", "--json").json()["cards"]
    assert [(card["slice"], card["uuid"]) for card in cards[1:]] == [(True, "MIG-aaaa"), (True, "MIG-bbbb")]
    assert "0/MIG-bbbb" in holdfast("gpus").out


@pytest.mark.requirement("ETIQ-03")
def test_ETIQ_03_a_reset_request_has_its_parts_and_executes_nothing(
    holdfast: Command, fake_nvml: FakeNvml, tmp_path: Path
) -> None:
    fake_nvml.add_cards(3)
    fake_nvml.run_on(1, (os.getpid(), 5 * GIB))
    shim = tmp_path / "bin" / "nvidia-smi"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
    shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
    path = {"PATH": f"{shim.parent}:{os.environ['PATH']}"}
    busy = holdfast("gpus", "reset-request", "1", env=path)
    assert busy.code == 0
    for words in ("GPU 1", f"pid {os.getpid()}", "Users with processes", "nvidia-smi --gpu-reset -i 1"):
        assert words in busy.out
    assert "NOT known to be idle" in busy.out
    idle = holdfast("gpus", "reset-request", "2", env=path)
    assert "The card is idle" in idle.out
    assert "nvidia-smi --gpu-reset -i 2" in idle.out
    assert not (tmp_path / "called").exists()


@pytest.mark.slow
@pytest.mark.requirement("ETIQ-03")
def test_ETIQ_03_idle_is_not_claimed_of_what_could_not_be_read(holdfast: Command, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    fake_nvml.lose(0)
    done = holdfast("gpus", "reset-request", "0")
    assert "The card is idle" not in done.out
    assert "NOT known to be idle" in done.out
    assert holdfast("gpus", "reset-request", "7").code == 66


@pytest.mark.requirement("LEASE-16")
def test_LEASE_16_a_live_lease_is_released_only_with_force_and_reason(
    holdfast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "1x24GiB")
    with live_run(holdfast, "--gpus", "1", "--idle-window", "0s") as run:
        for arguments in ((), ("--force",), ("--reason", "because")):
            done = holdfast("gpus", "release", run.run_id, *arguments)
            assert done.code == 77, arguments
        by_name = holdfast("gpus", "release", name_of(run.run_id))
        assert (by_name.code, run.run_id in by_name.err) == (77, True), by_name
        done = holdfast("gpus", "release", "0", "--force", "--reason", "the driver is stuck")
        assert done.code == 0
        assert run.run_id in done.out
        assert "still there" in done.err
        audit = [name for name in os.listdir(os.environ["HOLDFAST_LEASE_DIR"]) if "audit" in name]
        assert audit
    assert holdfast("gpus", "release", "20261120-100000-none-0a1b").code == 66


@pytest.mark.slow
def test_LEASE_18_every_run_that_shares_a_card_is_shown(holdfast: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "1")
    shared = ("run", "-d", "--prove", "0", "--gpus", "1", "--share", "--idle-window", "0s")
    for name, memory in (("first", ("--gpu-memory", "8GiB")), ("second", ())):
        assert holdfast(*shared, *memory, "--name", name, "--", "sleep", "60").code == 0
    try:
        shown = holdfast("gpus")
        (card,) = holdfast("gpus", "--json").json()["cards"]
    finally:
        for name in ("first", "second"):
            holdfast("stop", "--now", name)
    assert "+1 sharing" in shown.out
    assert ["-first-" in card["lease"]["run_id"], ["-second-" in one["run_id"] for one in card["sharing"]]] == [
        True,
        [True],
    ]
    assert shown.out.count("shared by") == 2
    assert "8 GiB reserved by run" in shown.out
    assert "all the rest may be used by run" in shown.out
    assert [one["reserved_bytes"] for one in card["sharers"]] == [8 * 1024**3, None]


@pytest.mark.slow
def test_LEASE_18_who_says_its_memory_is_told_that_both_have_to_share(
    holdfast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "1x24GiB")
    beginning = ("run", "-d", "--prove", "0", "--gpus", "1", "--gpu-memory", "8GiB", "--idle-window", "0s")
    first = holdfast(*beginning, "--name", "first", "--", "sleep", "60")
    run_id = first.out.strip()
    try:
        second = holdfast(*beginning, "--name", "second", "--", "sleep", "60")
        again = holdfast("restart", "second", "--share")
    finally:
        holdfast("stop", "--now", "first")
    assert (first.code, second.code) == (0, 75)
    assert "warning: cards.whole: gpu.memory: without --share each card is taken whole" in first.err
    assert f"only where both have --share, best with --gpu-memory: run {run_id} has not, and neither" in second.err
    assert (again.code, f"both have --share, best with --gpu-memory: run {run_id} has not\n" in again.err) == (75, True)


def test_where_the_leases_cannot_be_read_no_card_is_called_available(
    isolated_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise NotPermitted("the lease directory is closed")

    assert isolated_environment
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", SIMULATED["HOLDFAST_SIMULATED_GPUS"])
    monkeypatch.setattr("holdfast.agent.cards.box.open_existing_area", refuse)
    done = say("gpus")
    assert (done.code, "closed" in done.err) == (69, True)
    assert "yes" not in done.out
    assert done.out.count("not known") == 2
    assert [card["available"] for card in json.loads(say("gpus", "--json").out)["cards"]] == [False, False]


def test_leases_and_reservations_of_cards_that_are_not_seen_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "1x24GiB")
    kept = json.loads(say("gpus", "reserve", "--cards", "1", "--for", "1h", "--reason", "final eval", "--json").out)
    lease = take(open_area(), record(1, CARDS[0], CARDS[1]))
    try:
        for seen in ("0", "1x24GiB"):
            monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", seen)
            shown = say("gpus")
            assert shown.code == 0
            assert "cards 0, 1 (not seen here): held by" in shown.out
            assert "(simulated) for" in shown.out, "the reservation"
            assert lease.record.run_id in shown.out
            assert (kept["id"] in shown.out, "final eval" in shown.out) == (True, True)
            (unlisted,) = json.loads(say("gpus", "--json").out)["unlisted"]
            assert unlisted["run_id"] == lease.record.run_id
    finally:
        lease.release()


@pytest.mark.parametrize("verb", [(), ("idle",), ("health",)])
@pytest.mark.parametrize(("cards", "code", "words"), [("0", 0, "no cards: "), ("no such file", 69, "there are cards")])
def test_that_no_card_could_be_read_is_not_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
    verb: tuple[str, ...],
    cards: str,
    code: int,
    words: str,
) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", cards)
    done = say("gpus", *verb)
    assert (done.code, words in done.out) == (code, True), done
    assert json.loads(say("gpus", *verb, "--json").out)["complete"] is (code == 0)


@pytest.mark.parametrize(
    ("command", "cards", "code", "words"),
    [
        (("reserve", "--cards", "1", "--for", "1h"), "0", 64, "1 card is asked for; this box has none"),
        (("reserve", "--gpus", "0,", "--for", "1h"), "no such file", 69, "the cards could not be read"),
        (("health", "0"), "no such file", 69, "whether there is a card 0 could not be read"),
        (("health", "GPU-1"), "no such file", 69, "whether there is a card GPU-1 could not be read"),
    ],
)
def test_a_card_that_is_not_there_and_one_that_cannot_be_read_are_refused_differently(
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    cards: str,
    code: int,
    words: str,
) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", cards)
    done = say("gpus", *command)
    assert (done.code, words in done.err) == (code, True), done
    assert "see `holdfast gpus`" not in done.err


def test_nobody_is_said_to_be_idle_where_the_leases_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NotPermitted("the lease directory is closed")

    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "1x24GiB")
    monkeypatch.setattr("holdfast.agent.cards.box.open_existing_area", refuse)
    done = say("gpus", "idle", "--for", "0s")
    assert (done.code, "closed" in done.err) == (69, True)
