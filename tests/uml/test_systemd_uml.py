"""Real systemd, real logins, real logouts: when a run takes a scope, what the scope holds, and what a logout ends."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.uml.machine import REPOSITORY, Guest

if TYPE_CHECKING:
    from tests.uml.machine import Machine

pytestmark = [pytest.mark.uml, pytest.mark.process, pytest.mark.timeout(300)]
NEEDED = {
    "/lib/systemd/systemd-logind": "systemd",
    "/usr/bin/dbus-daemon": "dbus",
    "/usr/lib/systemd/user/dbus.socket": "dbus-user-session",
}
SCOPE = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/holdfast-ID.1.scope"
SESSION = "0::/user.slice/user-1000.slice/session-"


def play(machine: Machine, *scenarios: str, kill_at_logout: bool) -> dict[str, dict[str, Any]]:
    missing = sorted(package for path, package in NEEDED.items() if not os.path.exists(path))
    if missing:
        pytest.skip(f"packages {', '.join(missing)} are not installed; `make test` installs them")
    settings = f"[Login]\nKillUserProcesses={'yes' if kill_at_logout else 'no'}\nUserStopDelaySec=0\n"
    guest = Guest(
        systemd=True,
        files=(("/run/systemd/logind.conf.d/test.conf", settings),),
        env={"PYTHONPATH": f"{REPOSITORY}/src:{REPOSITORY}", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    result = machine.run(["python", "systemd_runs.py", *scenarios], guest)
    assert result.code == 0, (result.stdout, result.stderr, result.console)
    found: dict[str, dict[str, Any]] = json.loads(result.stdout)
    for scenario in scenarios:
        assert found[scenario]["gone"], f"{scenario}: the scope has vanished with the run"
    return found


@pytest.mark.slow
@pytest.mark.requirement("LIM-01", "LIM-02", "LIM-10", "PROC-24")
def test_LIM_01_PROC_24_a_lingering_account_gets_limits_and_outlives_its_logout(machine: Machine) -> None:
    found = play(machine, "as_root", "survives_logout", "rescued", "hog", kill_at_logout=True)

    limited = found["survives_logout"]
    assert limited["place"].startswith(f"{SCOPE}/holdfast/")
    assert limited["supervisor"] == f"{SCOPE}/supervisor"
    assert limited["mechanisms"] == dict.fromkeys(("memory", "cpus", "tasks"), "systemd_scope")
    assert limited["memory_max"] == str(64 * 1024**2)
    assert [one["level"] for one in limited["findings"]] == ["pass"]
    assert limited["login"] == ["pass"]
    assert limited["alive_after_logout"]
    assert limited["left"] == []
    assert limited["outcome"] == "succeeded"

    # Nothing asked for; without the scope the logout would have ended it, as KillUserProcesses=yes says.
    assert found["rescued"]["place"].startswith(f"{SCOPE}/holdfast/")
    assert found["rescued"]["alive_after_logout"]
    assert found["rescued"]["outcome"] == "succeeded"

    # systemd must not take the supervisor along when the kernel ends the job.
    assert found["hog"]["mechanisms"] == {"memory": "systemd_scope"}
    assert found["hog"]["outcome"] == "failed"
    assert found["hog"]["exit_code"] == 128 + signal.SIGKILL
    assert "class: `out_of_memory`" in found["hog"]["failure"]

    # Root gets the same from the system's manager.
    assert found["as_root"]["place"] == "/system.slice/holdfast-20261120-104501-root-0000.1.scope"
    assert found["as_root"]["enforced"] == {"memory": "systemd_scope"}
    assert found["as_root"]["removed"]


@pytest.mark.slow
@pytest.mark.requirement("LIM-01", "PROC-24")
def test_PROC_24_a_scope_is_not_taken_at_the_price_of_the_run(machine: Machine) -> None:
    found = play(machine, "stays", "only_there", "hung", kill_at_logout=False)

    stays = found["stays"]
    assert stays["place"].startswith(SESSION)
    assert stays["mechanisms"] == {"memory": "watchdog"}
    assert [(one["level"], one["remedy"].split()[:2]) for one in stays["findings"]] == [
        ("warn", ["loginctl", "enable-linger"])
    ]
    assert {(one["id"], one["level"]) for one in stays["preflight"]} == {("scope", "warn"), ("limits", "pass")}
    assert stays["alive_after_logout"]
    assert stays["outcome"] == "succeeded"

    # A limit that only a scope can hold: held, and the end at logout is a stop on record, not a loss.
    only_there = found["only_there"]
    assert only_there["mechanisms"] == {"cpu_weight": "systemd_scope"}
    assert [one["level"] for one in only_there["findings"]] == ["warn"]
    assert only_there["outcome"] == "stopped"
    assert "SIGTERM" in only_there["ending"]

    # The account's systemd hangs: the run starts all the same, and says why it has the weaker mechanism.
    hung = found["hung"]
    assert hung["code"] == 0
    assert hung["place"].startswith(SESSION)
    assert hung["mechanisms"] == {"memory": "watchdog"}
    assert "was not done within" in hung["findings"][0]["evidence"]
    assert hung["outcome"] == "succeeded"
