"""What a job of a test does: ``job.py FILE CODE [SECONDS]`` appends a line, waits at most so long, leaves.

With ``--until PATH`` instead of seconds it leaves when PATH is there, after five minutes at the latest.
"""

from __future__ import annotations

import os
import sys
import time


def main() -> None:
    path, code, *rest = sys.argv[1:]
    if sys.stdin.read(1):
        os._exit(99)
    line = f"{time.time():.6f} {os.environ.get('HOLDFAST_JOB', '')} {os.environ.get('HOLDFAST_RUN_ID', '')}\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)
    if rest[:1] == ["--until"]:
        end = time.monotonic() + 300
        while time.monotonic() < end and not os.path.exists(rest[1]):
            time.sleep(0.005)
    elif rest:
        time.sleep(float(rest[0]))
    os._exit(int(code))


main()
