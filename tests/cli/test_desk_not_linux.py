"""A Mac is a desk: the verbs that need nothing of this machine but ssh work where Linux is not."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.cli.far import FarRun, far_run
from tests.desk.test_not_linux import NOT_LINUX
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.cli, pytest.mark.timeout(600)]
__all__ = ["far_run"]

DESK = f"""{NOT_LINUX}
assert not os.path.exists("/proc/self")
from holdfast.cli.main import main
for words in sys.stdin.read().splitlines():
    print("$", words, flush=True)
    print("exit code", main(words.split()), flush=True)
"""


@pytest.mark.slow
def test_the_verbs_of_a_desk_work_without_linux(far_run: FarRun) -> None:
    verbs = {
        "ls": f"gpu1 {far_run.run_id} running",
        "ls --json": f'"run_id": "{far_run.run_id}"',
        f"show {far_run.name}": f"{far_run.run_id}: running",
        "run --on gpu1 --no-code --dry-run -- true": "nothing was sent (dry run)",
        "place ls": "gpu1 ",
        "secret ls gpu1": "gpu1 has no secrets",
        "reconcile gpu1": " of gpu1 known, 1 of them not ended",
        "patrol": ": 1 running",
        f"stop --now {far_run.name}": "stopped (exit 130)",
        f"wait {far_run.name}": f"gpu1:{far_run.run_id} stopped (exit 130)",
        f"logs {far_run.name}": "ready",
    }
    # A mount namespace of its own, in which nothing is at /proc.
    inside = 'mount -t tmpfs none /proc && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", inside, "sh", sys.executable, "-c", DESK],
        input="\n".join(verbs),
        env={**os.environ, "COLUMNS": "200"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=400 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    # The account has more runs when other tests came before, and then the columns are wider.
    said = dict(re.sub(r" +", " ", part).split("\n", 1) for part in done.stdout.split("$ ")[1:])
    assert [words for words, shown in verbs.items() if shown not in said[words]] == [], done.stdout
    codes = {words: text.rpartition("exit code ")[2].strip() for words, text in said.items()}
    assert {words: code for words, code in codes.items() if code != "0"} == {f"wait {far_run.name}": "130"}, done.stdout
