"""Checks inside the job, before its command, that the devices are still those of the lease (LEASE-09).

``python -I -S device_check.py -- COMMAND...``. Compares the environment with what the supervisor leased, which it finds
in the attempt's manifest; on a difference the command does not start.
"""

from __future__ import annotations

import json
import os
import sys

EXIT_MISMATCH = 78
MISMATCH = "lease_mismatch.json"


def main(arguments: list[str]) -> int:
    """Exec the command behind ``--``, or say what does not fit."""
    command = arguments[arguments.index("--") + 1 :]
    directory = f"{os.environ.get('HOLDFAST_RUN_DIR', '')}/attempts/{os.environ.get('HOLDFAST_ATTEMPT', '')}"
    try:
        with open(f"{directory}/manifest.json", encoding="utf-8") as file:
            manifest = json.load(file)
    except (OSError, ValueError) as error:
        return _refuse(directory, f"the login shell lost the run's variables ({error})")
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    leased = manifest["environment"].get("CUDA_VISIBLE_DEVICES", "")
    if seen != leased:
        return _refuse(directory, f"CUDA_VISIBLE_DEVICES is {seen!r} after the login shell, leased is {leased!r}")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"holdfast: {command[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


def _refuse(directory: str, words: str) -> int:
    message = f"lease mismatch: {words}; a login file overwrites it"
    sys.stderr.write(f"holdfast: {message}\n")
    try:
        with open(f"{directory}/{MISMATCH}", "x", encoding="utf-8") as file:
            json.dump({"message": message}, file)
    except OSError as error:
        sys.stderr.write(f"holdfast: {error}\n")
    return EXIT_MISMATCH


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
