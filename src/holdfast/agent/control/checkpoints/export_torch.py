"""A torch file out of a checkpoint where this Python has no torch: the one that trained writes it, in a child.

Its path stands in the checkpoint's own record, and is believed where that record is this account's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.core.control_characters import one_line
from holdfast.host.formats.bundle import find_library
from holdfast.host.process import libc
from holdfast.model import wire
from holdfast.training.errors import NoValidCheckpoint, TrainingError
from holdfast.training.storage import export as exporting
from holdfast.training.storage import layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.training.storage.export import ExportedFile
    from holdfast.training.storage.survey import SurveyEntry

PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from holdfast.agent.control.checkpoints.export_torch import serve; serve()"
)
MARK = "HOLDFAST-EXPORT "
"""Before the answer: start-up code of an environment may print, too."""
LONGEST_SEEN = 300


def has_torch() -> bool:
    """Whether this Python can load it."""
    try:
        import_module("torch")
    except ImportError:
        return False
    return True


def export_elsewhere(item: SurveyEntry, out: str, environ: Mapping[str, str], **options: object) -> ExportedFile:
    """As `training.storage.export.export` for torch, by the Python that made the checkpoint.

    Raises:
        TrainingError: it is not known or not there, or has no torch; as of `export`. NoValidCheckpoint: as of that.
        FileExistsError, OSError: as of `export`.
    """
    python = _find_python(item)
    if not python or not os.access(python, os.X_OK):
        known = f", {one_line(python, LONGEST_SEEN)}, is not there" if python else " is not on record"
        raise TrainingError(
            f"a torch file needs torch; {sys.executable} has none, and the Python that trained{known}",
            exporting.WITHOUT_TORCH,
        )
    kept = {name: value for name, value in environ.items() if not name.startswith("HOLDFAST_")}
    done = subprocess.run(
        (python, "-c", PROGRAM, find_library(environ)),
        input=json.dumps({"path": item.path, "out": os.path.abspath(out), **options}).encode(),
        capture_output=True,
        cwd="/",
        env={**kept, "CUDA_VISIBLE_DEVICES": "-1"},
        check=False,
    )
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    line = next((line for line in reversed(lines) if line.startswith(MARK)), None)
    if line is None:
        last = one_line((done.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"])[-1], LONGEST_SEEN)
        raise TrainingError(f"{python}, which trained, could not export it; it said: {last}", exporting.WITHOUT_TORCH)
    answer = json.loads(line[len(MARK) :])
    if "file" in answer:
        return wire.decode(exporting.ExportedFile, answer["file"])
    if "errno" in answer:
        raise OSError(answer["errno"], answer["message"], answer["path"])
    kind = NoValidCheckpoint if answer["damaged"] else TrainingError
    raise kind(answer["message"], exporting.WITHOUT_TORCH if answer["lacks_torch"] else answer["remedy"])


def serve() -> None:
    """In the child: read what is wanted on standard input, and answer in one line."""
    libc.set_parent_death_signal(9)
    asked: dict[str, Any] = json.load(sys.stdin)
    try:
        answer: dict[str, Any] = {"file": wire.encode(exporting.export(form="torch", **asked))}
    except TrainingError as error:
        damaged = isinstance(error, NoValidCheckpoint)
        answer = {"message": error.message, "remedy": error.remedy, "damaged": damaged, "lacks_torch": not has_torch()}
    except OSError as error:
        answer = {"errno": error.errno, "message": error.strerror, "path": error.filename}
    sys.stdout.write(f"\n{MARK}{json.dumps(answer)}\n")
    sys.stdout.flush()


def _find_python(item: SurveyEntry) -> str:
    """The interpreter that made a checkpoint; empty where that is not known, or another account's word."""
    try:
        own = os.stat(f"{item.path}/{layout.RECORD}").st_uid == os.geteuid()
    except OSError:
        own = False
    python = "" if item.record is None or not own else str(item.record.versions.get(layout.INTERPRETER, ""))
    return python if os.path.isabs(python) else ""
