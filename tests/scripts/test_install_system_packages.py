"""What is missing after lists of packages could not be fetched is a failure, not a release without those packages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parents[2] / "scripts/install_system_packages.sh"
NOTE = 'echo "${0##*/} $*" >>"${0%/*}/../notes"\n'
# All that the script finds on PATH. The real apt-get, systemctl and sudo are out of reach; `sh` and `rm`, which would
# write and remove /usr/sbin/policy-rc.d, do nothing.
TOOLS = ("bash", "dirname", "env", "grep", "sleep", "true")
FAKES = {
    "id": 'echo "$ACCOUNT"',
    "sudo": 'shift; exec "$@"',
    "dpkg-query": 'case "${@: -1}" in fish | gcc | openssh-server) exit 1 ;; *) echo installed ;; esac',
    "apt-get": NOTE
    + """case "$1 ${@: -1}" in
update*) exit "$UPDATE" ;;
*) [[ " $CARRIED " == *" ${@: -1} "* ]] || { echo "E: Unable to locate package ${@: -1}" >&2; exit 100; } ;;
esac""",
    "systemctl": NOTE + 'exit "$DISABLE"',
    "sh": NOTE,
    "rm": NOTE,
}


def run(
    place: Path, *, carried: str, update: int = 0, account: int = 0, disable: int = 0
) -> tuple[int, str, list[str]]:
    """Run the script where gcc, fish and openssh-server are missing; its status, its words, and what was installed."""
    programs = place / "bin"
    programs.mkdir()
    for tool in TOOLS:
        (programs / tool).symlink_to(shutil.which(tool) or tool)
    for name, text in FAKES.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    environment = {
        "PATH": str(programs),
        "PAUSE_S": "0",
        "CARRIED": carried,
        "UPDATE": str(update),
        "ACCOUNT": str(account),
        "DISABLE": str(disable),
    }
    done = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True, check=False)
    notes = (place / "notes").read_text().splitlines()
    installed = [word for line in notes if " install -y" in line for word in line.split()[2:] if word[0] != "-"]
    return done.returncode, done.stderr, installed


ALL = "gcc openssh-server fish"


@pytest.mark.parametrize(
    ("update", "account", "carried", "said"),
    [
        (100, 0, ALL, "trying with the lists that are there"),
        (100, 0, "gcc", "not installed: openssh-server fish; the lists of packages could not be fetched"),
        (100, 1000, "", f"not installed: {ALL}; the lists of packages could not be fetched"),
        (0, 1000, "gcc", "not installed: openssh-server fish; tests that need them are skipped"),
    ],
)
def test_what_is_missing_is_a_failure_where_the_lists_could_not_be_fetched(
    tmp_path: Path, update: int, account: int, carried: str, said: str
) -> None:
    status, words, installed = run(tmp_path, carried=carried, update=update, account=account)
    failed = update != 0 and carried != ALL
    assert status == failed, words
    assert installed == carried.split()
    assert said in words
    assert ("SYSTEM_PACKAGES=skip" in words) is failed


@pytest.mark.parametrize(("disable", "said"), [(0, "its own services are left disabled"), (1, "may start by itself")])
def test_a_service_that_could_not_be_disabled_is_not_said_to_be(tmp_path: Path, disable: int, said: str) -> None:
    status, words, _ = run(tmp_path, carried=ALL, disable=disable)
    assert status == 0, words
    assert f"openssh-server was installed for the tests{'; ' if disable == 0 else ', and '}{said}" in words
