"""Directories of checkpoints for tests: made by the library itself, and bent afterwards."""

from __future__ import annotations

import json
import os
import shutil
from array import array
from typing import TYPE_CHECKING, Any

from holdfast import training
from holdfast.training.storage import layout

if TYPE_CHECKING:
    from pathlib import Path


def make_directory(path: Path, *, steps: int = 4, loss: tuple[float, ...] = ()) -> Path:
    """A directory with one checkpoint for each of `steps` steps; `loss` is what each logged."""
    state: dict[str, Any] = {"weights": array("d", [0.0] * 1000), "small": bytearray(b"abc"), "lr": 0.5, "names": ["a"]}
    second = array("f", [0.0] * 10)
    with training.run(path, every=1, keep_last=steps, asynchronous=False, seed=3) as run:
        run.track(state, second=second)
        run.state["note"] = "hello"
        for step in run.steps(steps):
            state["weights"][0] = second[0] = float(step + 1)
            run.log(loss=loss[step] if loss else 1 / (step + 1))
    return path


def rewrite(path: Path, **changes: Any) -> None:
    """Change fields of a checkpoint's record and sign it again, as somebody with a purpose would."""
    where = path / layout.RECORD
    body = json.loads(where.read_bytes())
    body.pop("sha256")
    body.update(changes)
    import hashlib

    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    where.write_text(json.dumps({**body, "sha256": hashlib.sha256(text).hexdigest()}), encoding="utf-8")


def damage(path: Path, name: str = "state.safetensors", at: int = -1) -> None:
    """Turn one bit of a file."""
    with open(path / name, "r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def spread(path: Path, world: int, *, replicated: tuple[str, ...] = ()) -> None:
    """Make a checkpoint of one rank look like one of several, each with the same files."""
    body = json.loads((path / layout.RECORD).read_bytes())
    files = list(body["files"])
    for rank in range(1, world):
        (path / f"rank-{rank}").mkdir()
        for file in body["files"]:
            name = file["path"].removesuffix(".safetensors")
            if name not in replicated:
                shutil.copy(path / file["path"], path / f"rank-{rank}" / file["path"])
                files.append({**file, "path": f"rank-{rank}/{file['path']}"})
    tracked = {name: {**what, "replicated": name in replicated} for name, what in body["tracked"].items()}
    rewrite(path, files=files, world=world, tracked=tracked)
