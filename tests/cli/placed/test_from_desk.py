"""What a command prints that a desk has sent: its hints can be typed at that desk."""

from __future__ import annotations

import pytest

from holdfast.cli.errors import name_commands
from holdfast.desk.route.hints import name_place
from holdfast.model.errors import UsageError

pytestmark = pytest.mark.pure

RUN = "20261120-104501-digits-3fa2"
NAMED = {
    f"stop it: holdfast stop {RUN}": f"stop it: holdfast stop gpu1:{RUN}",
    f"`holdfast stop --now {RUN}` kills it": f"`holdfast stop --now gpu1:{RUN}` kills it",
    f"holdfast logs -n 20 {RUN}": f"holdfast logs -n 20 gpu1:{RUN}",
    f"holdfast attach {RUN}    stop: holdfast stop {RUN}": (
        f"holdfast attach gpu1:{RUN}    stop: holdfast stop gpu1:{RUN}"
    ),
    "holdfast restart RUN -- COMMAND": "holdfast restart gpu1:RUN -- COMMAND",
    "holdfast ls lists the runs": "holdfast ls --on gpu1 lists the runs",
    "`holdfast queue resume night`": "`holdfast queue resume --on gpu1 night`",
    "holdfast queue cancel, and its name": "holdfast queue cancel --on gpu1, and its name",
    "holdfast show digits": "holdfast show --on gpu1 digits",
    "holdfast show runs/digits for more": "holdfast show --on gpu1 runs/digits for more",
    "`holdfast show digits`.": "`holdfast show --on gpu1 digits`.",
    "then: holdfast restart": "then: holdfast restart gpu1:RUN",
    "raise limits.memory: holdfast restart --limit-memory; do": (
        "raise limits.memory: holdfast restart gpu1:RUN --limit-memory; do"
    ),
    "holdfast restart begins again, as the": "holdfast restart gpu1:RUN begins again, as the",
    "holdfast diagnose --deep and so on": "holdfast diagnose gpu1:RUN --deep and so on",
    "holdfast checkpoints ls shows what is there": "holdfast checkpoints ls gpu1:RUN shows what is there",
    "holdfast wait": "holdfast wait --on gpu1",
    "holdfast secret push PLACE HF_TOKEN": "holdfast secret push gpu1 HF_TOKEN",
    "again: holdfast push local ... /data/set": "again: holdfast push gpu1 ... /data/set",
    "holdfast secret push local HF_TOKEN": "holdfast secret push gpu1 HF_TOKEN",
    "/usr/bin/python3 hf.py -- queue work --boot": "/usr/bin/python3 hf.py -- queue work --boot",
    f"{RUN} stopped (exit 130)": f"gpu1:{RUN} stopped (exit 130)",
    f"{RUN}: running": f"gpu1:{RUN}: running",
    f"leased: box, run {RUN}": f"leased: box, run gpu1:{RUN}",
    f"{RUN}  running  1.2 s": f"{RUN}  running  1.2 s",
    f"in /runs/{RUN}/work and {RUN}/work": f"in /runs/{RUN}/work and {RUN}/work",
    "holdfast gpus": "holdfast gpus --on gpu1",
    "(holdfast doctor)": "(holdfast doctor --on gpu1)",
    "holdfast explain U11": "holdfast explain U11",
    "holdfast itself failed": "holdfast itself failed",
    "holdfast: note": "holdfast: note",
    f"holdfast stop gpu1:{RUN}": f"holdfast stop gpu1:{RUN}",
    f"holdfast adopt --gone REASON {RUN}": f"holdfast adopt --gone REASON gpu1:{RUN}",
    "run with holdfast run --on gpu1 x.yaml": "run with holdfast run --on gpu1 x.yaml",
    "/opt/holdfast show": "/opt/holdfast show",
    "podman pull org/x:1, then name it": "on gpu1: podman pull org/x:1, then name it",
    "docker info says more": "on gpu1: docker info says more",
    "have podman installed": "have podman installed",
    "nothing": "nothing",
}


def test_commands_in_hints_name_the_place() -> None:
    assert {text: name_place(text, "gpu1") for text in NAMED} == NAMED


def test_what_is_said_of_no_run_is_about_the_one_that_the_command_named() -> None:
    said = f"holdfast restart begins again; holdfast restart RUN -- COMMAND; holdfast stop {RUN}; holdfast reconcile"
    assert name_place(said, "gpu1", "far") == (
        f"holdfast restart gpu1:far begins again; holdfast restart gpu1:far -- COMMAND; holdfast stop gpu1:{RUN}; "
        "holdfast reconcile --on gpu1"
    )


def test_hints_of_a_box_can_be_typed_at_the_desk_also_in_json() -> None:
    hint = "`holdfast queue ls` lists them"
    of_box, of_desk = UsageError("none", hint=hint, details={"place": "gpu1"}), UsageError("none", hint=hint)
    for as_json in (False, True):
        assert name_commands(of_box.hint, of_box, as_json=as_json) == "`holdfast queue ls --on gpu1` lists them"
        assert name_commands(of_desk.hint, of_desk, as_json=as_json) == hint
