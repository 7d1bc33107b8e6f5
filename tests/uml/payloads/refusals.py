"""Try what this guest should refuse and print the errno's name of each, as JSON; arguments: a full and a read-only
place."""

from __future__ import annotations

import errno
import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def fill(path: str) -> None:
    with open(path, "wb", buffering=0) as file:
        file.writelines(b"x" * 4096 for _ in range(1024))


def make_cgroup() -> None:
    with open("/proc/self/cgroup") as file:
        os.mkdir("/sys/fs/cgroup" + file.read().strip().partition("::")[2] + "/mine")


def attempt(action: Callable[[], object]) -> str:
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "granted"


def main() -> None:
    full, read_only = sys.argv[1:]
    found = {
        "cgroup": attempt(make_cgroup),
        "full": attempt(lambda: fill(f"{full}/file")),
        "read_only": attempt(lambda: fill(f"{read_only}/file")),
        "root": attempt(lambda: fill("/uml-was-here")),
        "other_process": attempt(lambda: os.kill(1, 0)),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
