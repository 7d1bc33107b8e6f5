"""The job file of a fault's run, and the scripts that it needs."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .spec import Fault

PACKAGE = "holdfast.faults.payloads"
LONGEST = "3m"
"""A run whose guard was killed ends by itself after this."""
SCRIPT = """#!/bin/sh
echo started
: > "$HOLDFAST_FAULT/ready"
while [ ! -e "$HOLDFAST_FAULT/acted" ]; do sleep 0.1; done
exit 0
"""


def write_job(fault: Fault, box: str) -> str:
    """Write the job file and what it names into the sandbox; its path."""
    for name, text in (("script.sh", SCRIPT), ("windows.py", "#!/usr/bin/env python3\r\nprint('hello')\r\n")):
        path = f"{box}/{name}"
        with open(path, "x", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(path, 0o700)
    replaced = {"{python}": sys.executable, "{box}": box}
    command = [_replace(word, replaced) for word in fault.command]
    if fault.payload:
        module, *arguments = fault.payload
        own = ["-m", f"{PACKAGE}.{module}", *arguments]
        command = [*command, *own] if command else [sys.executable, *own]
    content: dict[str, object] = {
        "name": f"fault-{fault.name}",
        "command": command,
        "workdir": box,
        "timeout": LONGEST,
        "grace": "2s",
        # The first attempt is the one that is judged.
        "retries": {"max": 0},
        "disk": {"min_free": 0, "min_free_inodes": 0, "paths": [f"{box}/disk"]},
        **fault.job,
    }
    path = f"{box}/job.yaml"
    with open(path, "x", encoding="utf-8") as file:
        # JSON is YAML.
        json.dump(content, file, indent=1)
    return path


def _replace(word: str, replaced: dict[str, str]) -> str:
    for name, value in replaced.items():
        word = word.replace(name, value)
    return word
