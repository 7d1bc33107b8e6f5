"""A desk may be a Mac: what knows places imports nothing that only Linux has (decision 34 of issue 12)."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

NOT_LINUX = """
import importlib, os, pkgutil, select, signal, sys

# What a Mac's Python lacks. Source: the "Availability" notes of os, select and signal in Python's own documentation.
for module, names in (
    (os, ("pidfd_open", "pipe2", "memfd_create", "sched_getaffinity", "sched_setaffinity", "getrandom", "setns",
          "unshare", "O_PATH", "O_TMPFILE", "eventfd", "splice", "setresuid", "prlimit")),
    (select, ("epoll",)),
    (signal, ("pidfd_send_signal", "sigwaitinfo", "sigtimedwait")),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "darwin"

# Rooms of the host that are Linux through and through.
FORBIDDEN = ("holdfast.host.gpu", "holdfast.host.lease", "holdfast.host.contain", "holdfast.host.job",
             "holdfast.agent.supervise")

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(FORBIDDEN):
            raise ImportError(name + " is of Linux")
        return None

sys.meta_path.insert(0, Refuse())
"""
CODE = f"""{NOT_LINUX}
wrong = []
for room in ("desk", "transport", "transfer", "platforms"):
    package = importlib.import_module("holdfast." + room)
    for found in pkgutil.walk_packages(package.__path__, "holdfast." + room + "."):
        if found.name.startswith("holdfast.platforms.local") or found.name.endswith(".hf"):
            continue
        try:
            importlib.import_module(found.name)
        except Exception as error:
            wrong.append(": ".join((found.name, type(error).__name__, str(error))))
from holdfast.desk.route.table import VERBS, Kind
import holdfast.cli.placed
names = ["group", "run.there"]
names += [found.name.removeprefix("holdfast.cli.") for found in pkgutil.walk_packages(
    holdfast.cli.placed.__path__, "holdfast.cli.placed."
)]
for name, verb in VERBS.items():
    # Restart is sent as it was typed, or read by placed.restart.
    if (verb.kind is not Kind.ROUTED or name == "reconcile") and name != "restart":
        names.append("verbs." + name.replace(" ", "."))
for name in names:
    try:
        importlib.import_module("holdfast.cli." + name)
    except Exception as error:
        wrong.append(": ".join((name, type(error).__name__, str(error))))
print("\\n".join(wrong))
"""
TYPED = f"""{NOT_LINUX}
from holdfast.cli.main import main
for words in sys.stdin.read().splitlines():
    print("$", words, main(words.split()), flush=True)
"""
REFUSED = {
    "gpus": (64, "holdfast gpus is about a machine that runs jobs, and this one (darwin) runs none"),
    "queue show train": (64, "name a place: holdfast queue show --on PLACE"),
    "doctor --json": (64, '"hint": "name a place: holdfast doctor --on PLACE"'),
    "run -- true": (64, "name a place: holdfast run --on PLACE"),
    "submit -- true": (64, "name a place: holdfast submit --on PLACE"),
    "sweep --grid a=1,2 -- true": (64, "name a place: holdfast sweep submit --on PLACE"),
    "preflight --on local -- true": (64, "name a place: holdfast preflight --on PLACE"),
    "drill job.yaml": (64, "name a place: holdfast drill --on PLACE"),
    "reconcile": (64, "name a place: holdfast reconcile --on PLACE"),
    "show": (64, "name a run: holdfast show PLACE:RUN"),
    "stop digits": (66, "no place is known to have the run 'digits', and this machine runs none"),
    "submit --help": (0, "Usage: holdfast submit"),
    "ls": (0, "no runs are known"),
}


def test_what_a_desk_needs_imports_where_linux_is_not() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_what_only_a_machine_with_runs_can_do_is_refused_with_what_works() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TYPED],
        input="\n".join(REFUSED),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    said = re.split(r"^\$ (.*) (\d+)\n", done.stdout, flags=re.MULTILINE)
    found = {words: (int(code), text) for text, words, code in zip(said[::3], said[1::3], said[2::3], strict=False)}
    assert list(found) == list(REFUSED)
    wrong = [words for words, (code, text) in REFUSED.items() if found[words][0] != code or text not in found[words][1]]
    assert wrong == [], done.stdout
