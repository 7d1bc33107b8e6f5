"""``holdfast teardown``, ``lifecycle``, ``cost``: the gate of a real place of this machine, as a person types it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.host.clock import epoch_s, format_utc
from tests.desk.route.terminal import answer_at_terminal
from tests.json_forms import find_faults
from tests.rundirs import ended, make_run
from tests.status_endpoint import Endpoint
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Command, Ended

pytestmark = [pytest.mark.cli, pytest.mark.timeout(300)]
PROFILE = """
title = "A rental for tests"
inherits = "generic-ssh"
leaves_out = ["tiers"]
verified_on = "{day}"
source = "a test"

[verbs.destroy]
how = "providerctl destroy {{place}}"
destroys = ["the disk"]
irreversible = true
stops_meter = true

[tiers.volume]
paths = ["{volume}"]
survives = {{ destroy = "yes" }}
"""


@pytest.fixture
def rented(
    places: Callable[..., Path], isolated_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The place ``gpu1`` of this machine, rented two hours ago; programs of the provider in PATH note when called."""
    places()
    config = Path(isolated_environment["XDG_CONFIG_HOME"]) / "holdfast"
    (config / "profiles").mkdir(mode=0o700)
    day = format_utc(epoch_s())[:10]
    (config / "profiles/rental.toml").write_text(PROFILE.format(day=day, volume=tmp_path / "volume"))
    since = format_utc(epoch_s() - 7200)
    with (config / "places.toml").open("a") as file:
        file.write(f'profile = "rental"\n[gpu1.rent]\nsince = "{since}"\nrate = 1.99\ncurrency = "USD"\n')
        file.write(f'also = ["image base: 2 a month"]\nstatus_command = ["cat", "{tmp_path}/status"]\n')
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("providerctl", "runpodctl", "vastai", "curl", "wget"):
        (programs / name).write_text(f'#!/bin/sh\necho "$0 $@" >>{tmp_path}/called\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return tmp_path


@pytest.mark.slow
@pytest.mark.requirement("VRFY-01", "VRFY-04", "VRFY-05", "VRFY-06", "VRFY-07", "VRFY-09", "RAIL-16", "DOC-03")
@pytest.mark.gotcha("GEN1")
def test_a_place_is_given_up_only_when_all_is_home_and_a_person_has_approved_it(
    rented: Path, holdfast: Command, isolated_environment: dict[str, str]
) -> None:
    def teardown(*words: str) -> Ended:
        return holdfast("teardown", "gpu1", *words, cwd=code, timeout_s=LONG_S)

    code = rented / "code"
    approvals = Path(isolated_environment["XDG_STATE_HOME"]) / "holdfast/places/gpu1/approvals.jsonl"
    code.mkdir()
    (code / "train.sh").write_text("echo trained >metrics.txt\n")
    words = ("run", "--on", "gpu1", "-d", "--prove", "0", "--json", "--", "sh", "train.sh")
    run_id = holdfast(*words, cwd=code, timeout_s=LONG_S).json()["run_id"]
    assert holdfast("wait", f"gpu1:{run_id}", timeout_s=LONG_S).code == 0
    shut = teardown("--dry-run", "--json")
    missing = [each["name"] for each in shut.json()["conditions"] if each["holds"] != "yes"]
    assert (shut.code, missing) == (78, [f"receipt: {run_id}"])

    assert holdfast("pull", f"gpu1:{run_id}", "home", cwd=rented, timeout_s=LONG_S).code == 0
    shut = teardown("--dry-run", "--json")
    missing = [each["name"] for each in shut.json()["conditions"] if each["holds"] != "yes"]
    assert (shut.code, missing) == (78, [f"copy: {run_id}"]), "it is on the machine that ends"
    assert holdfast("pull", f"gpu1:{run_id}", "volume/home", cwd=rented, timeout_s=LONG_S).code == 0
    shown = teardown("--dry-run")
    assert shown.code == 0, shown
    assert "providerctl" not in shown.out, "the verb is shown once it is approved"
    assert "image base: 2 a month" in shown.out
    plan = shown.err.split()[-1]
    other = teardown("--approve", "0" * 16)
    assert (other.code, "is for another plan" in other.err) == (78, True)
    late = rented / "gpu1" / run_id / "artifacts/late.txt"
    late.write_text("late")
    shut = teardown("--approve", plan)
    assert (shut.code, f"receipt: {run_id}" in shut.err, approvals.exists()) == (78, True, False)
    late.unlink()

    done = teardown("--approve", plan)
    assert done.code == 0, done
    told = done.out[done.out.index("Approved by") :]
    assert told.index("1. providerctl destroy gpu1") < told.index("--check") < told.index("image base")
    again = teardown("--approve", plan)
    assert (again.code, "was used at" in again.err) == (78, True)
    assert len(approvals.read_text().splitlines()) == 1
    assert not (rented / "called").exists(), "holdfast called a program of a provider"

    (rented / "status").write_text("running\n")
    assert holdfast("teardown", "gpu1", "--check", "--wait", "0s").code == 75
    assert "2.0 h at 1.99 USD" in holdfast("ls", timeout_s=LONG_S).err
    (rented / "status").write_text("terminated\n")
    assert holdfast("teardown", "gpu1", "--check", "--wait", "0s").code == 0
    assert holdfast("cost", "--json").json()["places"][0]["until"] is not None
    phases = holdfast("lifecycle", "gpu1", "--json", cwd=code, timeout_s=LONG_S).json()
    assert (phases["phase"], phases["missing"]) == (None, [])


@pytest.mark.slow
def test_a_person_approves_by_the_places_name_at_a_terminal(rented: Path, holdfast: Command) -> None:
    (rented / "status").write_text("running\n")
    assert holdfast("place", "probe", "gpu1", timeout_s=LONG_S).code == 0
    prompt = "type the place's name: "
    code, text = answer_at_terminal("teardown", "gpu1", cwd=rented, answers=["gpu2"], prompt=prompt)
    assert (code, "nothing was approved" in text, "providerctl" in text) == (64, True, False)
    code, text = answer_at_terminal("teardown", "gpu1", cwd=rented, answers=["gpu1"], prompt=prompt)
    assert code == 0, text
    assert "1. providerctl destroy gpu1" in text


@pytest.mark.slow
@pytest.mark.requirement("COST-09", "VRFY-06")
def test_a_live_run_is_named_and_above_the_cap_nothing_new_is_begun(
    rented: Path, holdfast: Command, isolated_environment: dict[str, str]
) -> None:
    began = holdfast("run", "--on", "gpu1", "--no-code", "-d", "--json", "--", "sleep", "300", timeout_s=LONG_S).json()
    name = f"gpu1:{began['run_id']}"
    found = holdfast("teardown", "gpu1", "--dry-run", "--json", timeout_s=LONG_S)
    assert find_faults("teardown", found.json()) == []
    live = found.json()["conditions"][0]
    assert (found.code, live["name"], live["holds"]) == (78, "no live run", "no")
    assert began["run_id"] in live["seen"]
    config = Path(isolated_environment["XDG_CONFIG_HOME"]) / "holdfast/places.toml"
    config.write_text(config.read_text() + "cap = 3\n")
    for words in (("run", "--no-code"), ("run", "--dry-run"), ("submit", "--no-code")):
        refused = holdfast(words[0], "--on", "gpu1", *words[1:], "--", "true", timeout_s=LONG_S)
        assert refused.code == 78, words
        assert "has reached its cap of 3 USD" in refused.err
    assert holdfast("stop", "--now", name, timeout_s=LONG_S).code == 0


@pytest.mark.requirement("LOC-02", "COST-01", "COST-04", "DOC-01")
def test_what_needs_no_place_to_answer(rented: Path, holdfast: Command) -> None:
    assert "nothing to stop" in holdfast("teardown", "local").out
    cost = holdfast("cost", "gpu1", "--pull", "140", "--times", "30", "--price", "0.09")
    assert re.search(r"2\.0 h at 1\.99 USD = 3\.9[89] USD", cost.out), cost.out  # it goes on counting
    assert find_faults("teardown", holdfast("teardown", "local", "--json").json()) == []
    assert "egress: 378.00 USD" in cost.out
    assert holdfast("cost", "--pull", "140").code == 64
    assert holdfast("cost", "gpu1", "--save-every", "often").code == 64
    assert holdfast("teardown", "gpu1", "--check", "--wait", "long").code == 64
    assert "no meter" in holdfast("teardown", "local", "--check").err
    phases = holdfast("lifecycle", "gpu1", "--json").json()
    assert (phases["phase"], phases["title"], phases["command"]) == (0, "prepare", "holdfast place probe gpu1")
    assert holdfast("teardown", "gpu1", "--leave", "x").code == 64
    rules = holdfast("rules", "--json").json()
    assert {rule["held"] for rule in rules["rules"]} == {"refused", "built in", "asked", "told"}


def test_the_phases_of_a_run_here_are_shown_by_its_name_alone(
    isolated_environment: dict[str, str], holdfast: Command
) -> None:
    run_dir = make_run(isolated_environment["HOLDFAST_RUNS"], state=ended())
    for name in ("digits", os.path.basename(run_dir), "local:digits"):
        found = holdfast("lifecycle", name, "--json").json()
        assert (found["place"], found["run_id"]) == ("local", os.path.basename(run_dir))
    assert "there is no place digit;" in holdfast("lifecycle", "digit").err


@pytest.mark.slow
@pytest.mark.requirement("SPOT-04")
def test_a_providers_notice_ends_a_run_as_preempted(
    rented: Path, holdfast: Command, isolated_environment: dict[str, str]
) -> None:
    endpoint = Endpoint()
    endpoint.answers = [(404, b""), (200, b"terminate at noon")]
    try:
        path = Path(isolated_environment["XDG_CONFIG_HOME"]) / "holdfast/profiles/rental.toml"
        path.write_text(f'notice = "{endpoint.url}"\n{path.read_text()}')
        words = ("run", "--on", "gpu1", "--no-code", "-d", "--json", "--", "sleep", "300")
        run_id = holdfast(*words, timeout_s=LONG_S).json()["run_id"]
        ended = holdfast("wait", f"gpu1:{run_id}", timeout_s=LONG_S)
    finally:
        endpoint.end()
    assert ended.code == 143
    assert "preemption by the provider's notice (terminate at noon)" in ended.err
