"""What arrives when a transfer is damaged on its way: holdfast pull, rsync, scp and tar over the same ssh.

    python benchmarks/damaged.py [COUNT]     so many transfers each (100); a private sshd on loopback; needs root, rsync

ssh's own checksum finds what happens on the wire; what is damaged here is what comes out of it (`damaging_ssh.py`), as
by faulty memory, a proxy or a wrapper. The same damages for each. A transfer that ends with 0 and has brought another
tree is silent. rclone speaks ssh itself, so nothing can be damaged behind it; it is not here.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from typing import TYPE_CHECKING

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[0] = ROOT

from benchmarks.pull import Desk  # noqa: E402
from tests.sshd import Sshd  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILES, BYTES = 40, 40_000
PATIENCE = ("timeout", "30")
"""For those that would wait for ever for bytes that were dropped."""
MOST = FILES * BYTES * 9 // 10


def list_tree(top: Path) -> dict[str, bytes]:
    """The files of the run's results by their paths."""
    found = (path for path in (top / "artifacts").rglob("*") if path.is_file())
    return {str(path.relative_to(top)): path.read_bytes() for path in found}


def count_ends(desk: Desk, run_dir: Path, transfers: int) -> dict[str, Counter[str]]:
    """How the transfers of each way ended: right, refused (an error), or silent."""
    name, once = run_dir.name, desk.directory / "once"
    link = desk.directory / "damaging-ssh"
    link.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/benchmarks/damaging_ssh.py "$@"\n')
    link.chmod(0o755)
    desk.environ |= {"SPOIL_SSH": str(desk.sshd.program), "SPOIL_ONCE": str(once), "HOLDFAST_SSH": str(link)}
    packed = f'mkdir -p "$1" && set -o pipefail && {link} box tar -C runs/{name} -cf - . | tar -C "$1" -xf -'
    ways: dict[str, Callable[[str], object]] = {
        "holdfast pull": lambda target: desk.ours("pull", f"gpu1:{name}", target),
        "rsync -a": lambda target: desk.call(
            "rsync", "-a", "--timeout=20", "-e", str(link), f"box:runs/{name}/", f"{target}/"
        ),
        "scp -r": lambda target: desk.call(*PATIENCE, "scp", "-q", "-r", "-S", str(link), f"box:runs/{name}", target),
        "tar over ssh": lambda target: desk.call(*PATIENCE, "bash", "-c", packed, "bash", target),
    }
    expected = list_tree(run_dir)
    counts: dict[str, Counter[str]] = {way: Counter() for way in ways}
    draw = random.Random(7)
    for number in range(transfers):
        desk.environ |= {"SPOIL_AT": str(draw.randrange(100_000, MOST)), "SPOIL_SEED": str(number)}
        for way, act in ways.items():
            target = desk.directory / f"copy-{number}"
            once.touch()
            try:
                act(str(target))
                end = "right" if list_tree(target) == expected else "silent"
            except RuntimeError:
                end = "refused"
            counts[way][end if not once.exists() else "not damaged"] += 1
            once.unlink(missing_ok=True)
            shutil.rmtree(target, ignore_errors=True)
    return counts


def main() -> int:
    """Count, and print."""
    transfers = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with Sshd.started() as sshd, tempfile.TemporaryDirectory(prefix="hf-bench-") as directory:
        desk = Desk(directory, sshd)
        try:
            counts = count_ends(desk, desk.make_run("results", FILES, BYTES), transfers)
        finally:
            desk.environ["HOLDFAST_SSH"] = str(sshd.program)
            desk.end_shared_connections()
    versions = [subprocess.run([name, flag], capture_output=True, text=True, check=False) for name, flag in VERSIONS]
    print("; ".join((one.stdout or one.stderr).splitlines()[0] for one in versions))
    print("| way | right, or mended by itself | refused | silently another tree | not damaged |\n|---|---|---|---|---|")
    for way, ends in counts.items():
        print(f"| {way} | {ends['right']} | {ends['refused']} | {ends['silent']} | {ends['not damaged']} |")
    return 1 if counts["holdfast pull"]["silent"] else 0


VERSIONS = (("rsync", "--version"), ("ssh", "-V"), ("tar", "--version"))

if __name__ == "__main__":
    sys.exit(main())
