"""``holdfast gpus usage``, ``reserve``, ``reservations``, ``unreserve`` and ``idle``, and what they do to runs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.cli.verbs.gpus import command
from holdfast.cli.verbs.gpus.reserve import parse_begin
from holdfast.core.cards.reservations import Reservation
from holdfast.host import clock
from holdfast.host.lease.usage import ledger_stem
from holdfast.host.process import processes
from holdfast.model import wire
from holdfast.model.errors import UsageError
from tests.cli.live import live_run
from tests.fakes.nvml import GIB
from tests.json_forms import find_faults
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.cli.conftest import Command
    from tests.fakes.nvml import FakeNvml

pytestmark = pytest.mark.cli
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file to another account")
OTHER = 60_001
ON_A_CARD = ("--gpus", "1", "--idle-window", "0s")


@pytest.fixture(autouse=True)
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "2x24GiB")


def area() -> Path:
    return Path(os.environ["HOLDFAST_LEASE_DIR"])


def find_ledger() -> Path:
    """This account's ledger of this month."""
    (path,) = area().glob(f"{ledger_stem(os.geteuid(), clock.epoch_s())}.*.jsonl")
    return path


def read_uuids(holdfast: Command) -> list[str]:
    return [card["uuid"] for card in holdfast("gpus", "--json").json()["cards"]]


def keep_for_another(uuids: list[str], *, begin_s: float = 0.0, length_s: float = 3600.0) -> Reservation:
    """A reservation of another account, in a file of its own."""
    now = clock.epoch_s()
    user = processes.user_name(OTHER)
    kept = Reservation("r0a0b0c0d", OTHER, user, tuple(uuids), now + begin_s, now + begin_s + length_s, now, reason="x")
    path = area() / f"reservation-{kept.id}.json"
    path.write_bytes(wire.to_bytes(kept))
    os.chown(path, OTHER, OTHER)
    return kept


@pytest.mark.slow
def test_a_box_that_nobody_has_used_is_no_error(holdfast: Command, tmp_path: Path) -> None:
    env = {"HOLDFAST_LEASE_DIR": str(tmp_path / "none")}
    assert "nobody has leased" in holdfast("gpus", "usage", env=env).out
    assert "nothing is reserved" in holdfast("gpus", "reservations", env=env).out
    assert holdfast("gpus", "unreserve", "r1", env=env).code == 66
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
@pytest.mark.requirement("ETIQ-04")
def test_each_run_is_in_the_ledger_once_also_when_its_supervisor_was_killed(holdfast: Command) -> None:
    with live_run(holdfast, *ON_A_CARD, "--name", "watched") as run:
        live = holdfast("gpus", "usage", "--json").json()
        (account,) = live["weeks"][0]["accounts"]
        assert (account["user"], account["cards_now"]) == (processes.user_name(os.geteuid()), 1)
        run.kill_supervisor()
        assert holdfast("adopt", run.run_id).code == 0
    (line,) = map(json.loads, find_ledger().read_text().splitlines())
    assert (line["run"], line["exact"], line["simulated"]) == (run.run_id, True, True)
    done = holdfast("gpus", "usage")
    assert processes.user_name(os.geteuid()) in done.out
    assert done.out.startswith("SIMULATED cards: ")
    assert " (simulated): leased" in done.out
    assert live["simulated"] == sorted(live["cards"])
    assert "% of the time" in done.out
    assert holdfast("gpus", "usage", "--user", "nobody-here").out.startswith("nobody has leased")
    weeks = holdfast("gpus", "usage", "--since", "20d", "--json").json()["weeks"]
    assert [len(week["accounts"]) for week in weeks] == [1]


@pytest.mark.slow
@needs_root
def test_a_ledger_that_somebody_else_wrote_is_named_and_not_counted(holdfast: Command) -> None:
    assert holdfast("run", *ON_A_CARD, "--", "true").code == 0
    path = find_ledger()
    os.chown(path, OTHER, OTHER)
    done = holdfast("gpus", "usage")
    assert "nobody has leased" in done.out
    value = holdfast("gpus", "usage", "--json").json()
    assert value["weeks"] == []
    assert path.name in value["warnings"][0]


@pytest.mark.parametrize(
    "args",
    [
        ("usage", "--since", "soon"),
        ("usage", "--since", "2026-13-45"),
        ("usage", "--since", "5000d"),
        ("usage", "--week", "--since", "2d"),
        ("reserve", "--for", "1h"),
        ("reserve", "--cards", "1", "--gpus", "0,", "--for", "1h"),
        ("reserve", "--gpus", "seven", "--for", "1h"),
        ("reserve", "--gpus", "0", "--for", "1h"),
        ("reserve", "--gpus", "5,", "--for", "1h"),
        ("reserve", "--cards", "3", "--for", "1h"),
        ("reserve", "--cards", "1", "--for", "1s"),
        ("reserve", "--cards", "1", "--for", "90h"),
        ("reserve", "--cards", "1", "--for", "1h", "--from", "26:00"),
        ("reserve", "--cards", "1", "--for", "1h", "--from", "2001-01-01 10:00"),
        ("reserve", "--cards", "1", "--for", "1h", "--from", "+30d"),
        ("idle", "--min", "long"),
        ("idle", "--for", "9h"),
    ],
)
def test_bad_input_is_refused_in_words(args: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError) as caught:
        command.main(list(args), standalone_mode=False)
    assert caught.value.hint
    assert capsys.readouterr().out == ""
    assert not [name for name in os.listdir(area()) if name.startswith("reservation-")]


def test_a_refusal_is_two_lines_and_exit_code_64(holdfast: Command) -> None:
    done = holdfast("gpus", "reserve", "--cards", "3", "--for", "1h")
    assert (done.code, done.out) == (64, "")
    assert "this box has 2" in done.err


@pytest.mark.slow
@needs_root
@pytest.mark.requirement("ETIQ-09")
def test_a_reservation_of_another_keeps_a_run_off_and_says_who_when_and_why(holdfast: Command) -> None:
    uuids = read_uuids(holdfast)
    kept = keep_for_another(uuids[:1])
    assert kept.id in holdfast("gpus", "reservations").out
    first, second = holdfast("gpus", "--json").json()["cards"]
    assert (first["available"], second["available"]) == (False, True)
    assert kept.id in first["unavailable"][0]
    assert "reserved: card" not in holdfast("gpus").out, "it is told with its card"
    done = holdfast("run", "--gpus", "0,", "--idle-window", "0s", "--", "true")
    assert done.code == 75
    for part in ("card 0: reserved by", processes.user_name(OTHER), kept.id):
        assert part in done.err
    # Another card is free; a count takes that one.
    assert holdfast("run", *ON_A_CARD, "--", "true").code == 0
    refused = holdfast("gpus", "reserve", "--gpus", "0,", "--for", "1h")
    assert refused.code == 75
    assert kept.id in refused.err
    assert holdfast("gpus", "unreserve", kept.id).code == 0
    assert holdfast("run", "--gpus", "0,", "--idle-window", "0s", "--", "true").code == 0


@pytest.mark.slow
@needs_root
def test_a_run_with_a_timeout_before_a_reservation_gets_the_card(holdfast: Command) -> None:
    keep_for_another(read_uuids(holdfast), begin_s=3000.0)
    done = holdfast("run", *ON_A_CARD, "--", "true")
    assert done.code == 75
    assert "state a timeout" in done.err
    assert holdfast("run", *ON_A_CARD, "--timeout", "10m", "--", "true").code == 0


@pytest.mark.slow
def test_ones_own_reservation_is_used_first_and_ends_when_told(holdfast: Command) -> None:
    uuids = read_uuids(holdfast)
    made = holdfast("gpus", "reserve", "--gpus", "1,", "--for", "8h", "--reason", "a \x1b[31mpaper", "--json").json()
    name = made["id"]
    assert made["cards"] == uuids[1:]
    assert find_faults("gpus reserve", made) == []
    reserved = holdfast("gpus", "reservations").out
    assert ("\x1b" in reserved, "1 (simulated)" in reserved, made["simulated"]) == (False, True, True)
    shown = holdfast("gpus")
    (line,) = [line for line in shown.out.splitlines() if line.startswith("reserved: card 1 (simulated) for ")]
    assert (name in line, line.endswith("paper"), "\x1b" in line) == (True, True, False)
    assert [item["id"] for item in holdfast("gpus", "--json").json()["reservations"]] == [name]
    with live_run(holdfast, *ON_A_CARD, "--name", "mine") as run:
        (held,) = [card for card in holdfast("gpus", "--json").json()["cards"] if card["lease"]]
        assert (held["uuid"], held["lease"]["run_id"]) == (uuids[1], run.run_id)
    assert holdfast("gpus", "reservations", "--json").json()["reservations"][0]["id"] == name
    assert holdfast("gpus", "unreserve", name).code == 0
    assert holdfast("gpus", "unreserve", name).code == 66


@pytest.mark.slow
@pytest.mark.requirement("ETIQ-09")
def test_a_hard_limit_refuses_the_second_run_with_rule_and_holder(holdfast: Command, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[share]\nmax_cards_per_user = 1\n")
    env = {"HOLDFAST_RULES": str(rules)}
    with live_run(holdfast, *ON_A_CARD, "--name", "first") as run:
        done = holdfast("run", *ON_A_CARD, "--", "true", env=env)
        assert done.code == 75
        for part in ("rules of this box", run.run_id, "share.max_cards_per_user", str(rules)):
            assert part in done.err
    assert holdfast("run", *ON_A_CARD, "--", "true", env=env).code == 0
    done = holdfast("run", "--gpus", "2", "--idle-window", "0s", "--", "true", env=env)
    assert done.code == 78
    assert "rules.max_cards_per_user" in done.err


@pytest.mark.slow
def test_a_run_at_a_limit_that_waits_starts_when_the_other_ends(holdfast: Command, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[share]\nmax_cards_per_user = 1\n")
    env = {"HOLDFAST_RULES": str(rules)}
    with live_run(holdfast, *ON_A_CARD, "--name", "first") as first:
        started = holdfast("run", "-d", "--prove", "0", "--json", *ON_A_CARD, "--wait", "5m", "--", "true", env=env)
        second = started.json()["run_id"]
        wait_until(lambda: holdfast("gpus", "--json").json()["waiting"], what="it stands in line")
        holdfast("stop", "--now", first.run_id)
        assert holdfast("attach", second).code == 0


@pytest.mark.slow
def test_a_card_that_no_run_has_is_reserved_before_one_that_a_run_has(holdfast: Command) -> None:
    uuids = read_uuids(holdfast)
    with live_run(holdfast, *ON_A_CARD, "--name", "mine") as run:
        (held,) = [card["uuid"] for card in holdfast("gpus", "--json").json()["cards"] if card["lease"]]
        made = holdfast("gpus", "reserve", "--cards", "1", "--for", "1h", "--reason", "eval", "--json").json()
        assert made["cards"] == [uuid for uuid in uuids if uuid != held], run.run_id


@pytest.mark.slow
def test_a_card_at_rest_is_told_with_what_is_known(holdfast: Command) -> None:
    with live_run(holdfast, *ON_A_CARD, "--name", "dozing") as run:
        assert "no card is held at rest" in holdfast("gpus", "idle", "--for", "0s").out
        (hoard,) = holdfast("gpus", "idle", "--min", "0s", "--for", "0s", "--json").json()["idle"]
        assert (hoard["run_id"], hoard["idle_s"], hoard["known_from"]) == (run.run_id, None, "this moment only")
        now = clock.epoch_s()
        health = Path(run.look().attempt_dir) / "health.jsonl"
        first = {"uuid": hoard["uuid"], "utilisation_pct": 0}
        health.write_text(json.dumps({"utc": clock.format_utc(now), "cards": [first]}) + "\n")
        one = holdfast("gpus", "idle", "--min", "1ms", "--for", "0s")
        assert "idle now, before that not known" in one.out, one
        with health.open("w") as file:
            for ago_s in range(7200, 0, -300):
                card = {"uuid": hoard["uuid"], "utilisation_pct": 0 if ago_s <= 6000 else 80}
                file.write(json.dumps({"utc": clock.format_utc(now - ago_s), "cards": [card]}) + "\n")
        done = holdfast("gpus", "idle", "--for", "0s")
        for part in (run.run_id, "idle for 1h35m", "1.6 GPU-hours lost", f"holdfast stop {run.run_id}", "Thank you"):
            assert part in done.out
    assert holdfast("gpus", "idle", "--min", "0s", "--for", "0s", "--json").json()["idle"] == []


@pytest.mark.slow
def test_a_stranger_with_memory_on_a_card_at_rest_is_told(
    holdfast: Command, fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_SIMULATED_GPUS")
    fake_nvml.add_cards(2)
    fake_nvml.set(0, utilisation=0)
    fake_nvml.set(1, utilisation=90)
    fake_nvml.run_on(0, (os.getpid(), 12 * GIB))
    fake_nvml.run_on(1, (os.getpid(), 12 * GIB))
    value = holdfast("gpus", "idle", "--min", "0s", "--for", "0s", "--json").json()
    assert [(hoard["index"], hoard["run_id"], hoard["pids"]) for hoard in value["idle"]] == [(0, None, [os.getpid()])]
    assert "no holdfast run" in holdfast("gpus", "idle", "--min", "0s", "--for", "0s").out


def test_times_are_read_as_people_write_them() -> None:
    now = time.mktime((2026, 11, 20, 20, 0, 0, 0, 0, -1))
    assert parse_begin("now", now) == now
    assert parse_begin("+2h", now) == now + 7200
    assert parse_begin("22:00", now) == now + 7200
    assert parse_begin("08:00", now) == now + 12 * 3600
    assert parse_begin("2026-11-21 20:00", now) == now + 86400
    with pytest.raises(UsageError):
        parse_begin("yesterday", now)


@pytest.mark.slow
def test_names_in_the_files_of_others_do_not_steer_the_terminal(holdfast: Command) -> None:
    assert holdfast("run", *ON_A_CARD, "--", "true").code == 0
    path = find_ledger()
    line = json.loads(path.read_text())
    line |= {"run": "other", "cards": ["A-\x1b[2J", *(f"GPU-{number}" for number in range(99))], "gpu_seconds": 9.0}
    line["from"] = clock.format_utc(clock.epoch_s() - 60.0)
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    done = holdfast("gpus", "usage")
    assert "\x1b" not in done.out
    assert r"A-\x1b[2J (simulated): leased" in done.out
    assert "more names of cards stand in the ledgers" in done.err
