"""One power cut for a run and a queue: `before` has both under way and says so, `after` prints what became of them."""

from __future__ import annotations

import json
import os
import sys
import time

from tests.uml.payloads import queue_reboot, reboot


def before() -> None:
    """The power goes when the line is out."""
    reboot.before()
    queue_reboot.before()
    os.sync()
    print("under way", flush=True)
    time.sleep(600)


def after() -> None:
    """First the run, as the boot left it; then the queue is taken up again."""
    run = reboot.after()
    diagnosed = reboot.diagnose()
    print(json.dumps({"run": run, "diagnosed": diagnosed, "queue": queue_reboot.after()}))


if __name__ == "__main__":
    {"before": before, "after": after}[sys.argv[1]]()
