#!/usr/bin/env python3
"""Draws docs/terminal.svg: a session of a shell that was really run, with simulated cards, as a picture of text."""

from __future__ import annotations

import argparse
import getpass
import html
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "terminal.svg"
SESSION = (
    "holdfast run -d --gpus 1 --timeout 4h --name digits --env EPOCHS=400 job.yaml",
    "holdfast run --gpus 1 -- python eval.py        # the box has one card",
    "holdfast ls",
    "holdfast stop digits",
    "holdfast restart digits                        # goes on where it was",
    "holdfast run --name lr -- python broken.py",
)
FILES = {"broken.py": "config = {}\nprint(config['lr'])\n", "eval.py": "print('accuracy 0.98')\n"}
READS_S = 3.0
"""How long a person reads what the command before has said."""
WIDEST = 136
FONT_PX, LINE_PX, LETTER_PX, EDGE_PX = 13, 18, 7.83, 16
FONT = "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace"
ABOUT = "A terminal: a job is started, a second one refused, the first stopped and restarted, a failure explained"
COLOURS = {"back": "#1b1f27", "text": "#d7dae0", "command": "#8ec07c"}


def record(commands: tuple[str, ...], directory: Path) -> list[tuple[str, str]]:
    """Run each command in one shell, as a person would; the commands with all that they printed."""
    programs = directory / "bin"
    programs.mkdir()
    for name, words in (("holdfast", "-m holdfast "), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words}"$@"\n')
        (programs / name).chmod(0o755)
    environ = {
        **{name: os.environ[name] for name in ("LANG", "TERM") if name in os.environ},
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(directory),
        "COLUMNS": str(WIDEST),
        "HOLDFAST_SIMULATED_GPUS": "1x24GiB",
    }
    work = directory / "code"
    work.mkdir()
    for path in (ROOT / "examples" / "digits").iterdir():
        if path.is_file():
            (work / path.name).write_bytes(path.read_bytes())
    for name, text in FILES.items():
        (work / name).write_text(text)
    said = []
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], cwd=work, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        said.append((command, done.stdout.rstrip("\n")))
        time.sleep(READS_S)
    subprocess.run(["holdfast", "stop", "--now", "digits"], env=environ, cwd=work, capture_output=True, check=False)
    return said


def draw(session: list[tuple[str, str]], hidden: str) -> str:
    """The picture; `hidden` is the directory of the recording, which is nobody's business."""
    lines: list[tuple[str, str]] = []
    account = getpass.getuser()
    for command, output in session:
        lines.append(("command", f"$ {command}"))
        shown = output.replace(hidden, "~").replace(account, "anna")
        lines += [("text", part) for line in shown.splitlines() for part in wrap(line)]
        lines.append(("text", ""))
    lines.pop()
    width, height = int(2 * EDGE_PX + WIDEST * LETTER_PX), 2 * EDGE_PX + len(lines) * LINE_PX
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{ABOUT}">',
        f'<rect width="{width}" height="{height}" rx="8" fill="{COLOURS["back"]}"/>',
        f'<g font-family="{FONT}" font-size="{FONT_PX}" xml:space="preserve">',
    ]
    for number, (kind, text) in enumerate(lines):
        y = EDGE_PX + LINE_PX * (number + 1) - 5
        drawn.append(f'<text x="{EDGE_PX}" y="{y}" fill="{COLOURS[kind]}">{html.escape(text)}</text>')
    return "\n".join([*drawn, "</g>", "</svg>", ""])


def wrap(line: str) -> list[str]:
    """A line as a terminal shows it."""
    return [line[at : at + WIDEST] for at in range(0, max(1, len(line)), WIDEST)]


def main() -> int:
    """Record the session and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PICTURE, help="where the picture goes (default: docs/terminal.svg)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recording-") as made:
        session = record(SESSION, Path(made))
        chosen.out.write_text(draw(session, made), encoding="utf-8")
    print(f"wrote {chosen.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
