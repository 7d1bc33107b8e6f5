"""A campaign behind ``make soak``: five hundred damaged transfers of a run, no loss or change of which is silent.

``HOLDFAST_SOAK_PULLS`` sets how many (500), ``HOLDFAST_SOAK_SEED`` repeats a campaign. Each transfer is a stream of a
real sender that is damaged on its way: bits flipped, pieces lost, doubled, swapped, zeroed or put in, the link cut. It
may be damaged again when it is gone on with. What is at home afterwards is the run, byte by byte, or the pull says that
it is not. `tar` gets the same damages, as a control that they are damages.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from holdfast.core.pull.stream import PULLING, Wish
from holdfast.model.errors import HoldfastError
from holdfast.transfer.pull.copy import Copy
from holdfast.transfer.pull.pull import take_run
from tests.rundirs import ended, make_run
from tests.transfer.code.repositories import list_tree
from tests.transfer.pull.damages import DAMAGES, flip
from tests.transfer.pull.streams import PullBox

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(7200)]

PULLS = int(os.environ.get("HOLDFAST_SOAK_PULLS", "500"))
SEED = int(os.environ.get("HOLDFAST_SOAK_SEED", str(int.from_bytes(os.urandom(4), "big"))))
RUN = "20261120-100000-digits-0a1b"
MIB = 1 << 20


class Link:
    """Damages one or several pieces of a transfer, each in its own way."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.at = sorted(draw.randrange(3 * MIB // 2) for _ in range(draw.choice((1, 1, 1, 2, 4))))
        self.kinds: list[str] = []

    def __call__(self, data: bytes, begun: int) -> bytes | None:
        arrives: bytes | None = data
        while self.at and begun + len(data) > self.at[0] and arrives:
            self.at.pop(0)
            damage = self.draw.choice(DAMAGES)
            self.kinds.append(damage.__name__)
            arrives = damage(arrives, self.draw)
        return arrives


def make_files(run_dir: Path, draw: random.Random) -> None:
    for number in range(40):
        (run_dir / "artifacts" / f"{number}.bin").write_bytes(draw.randbytes(draw.randrange(20_000)))
    (run_dir / "artifacts" / "weights.bin").write_bytes(draw.randbytes(3 * MIB // 2))
    (run_dir / "best").symlink_to("artifacts/weights.bin")


def test_no_damaged_transfer_loses_or_changes_anything_silently(
    isolated_environment: dict[str, str], tmp_path: Path
) -> None:
    draw = random.Random(SEED)
    run_dir = Path(make_run(isolated_environment["HOLDFAST_RUNS"], RUN, ended()))
    make_files(run_dir, draw)
    expected = list_tree(run_dir)
    counts: Counter[str] = Counter()
    for number in range(PULLS):
        link, target, box = Link(draw), tmp_path / f"copy-{number}", PullBox()
        box.spoil = link
        copy = Copy(str(target), "gpu1", RUN, os.environ)
        with copy.held():
            try:
                taken = take_run(box.as_box(), Wish(RUN), copy, pauses_s=(0.0,) * 6)
                told = "gone on with" if taken.again else "not changed"
            except HoldfastError:
                told = "given up"
        found = {
            path: data
            for path, data in list_tree(target).items()
            if path != "copy.json" and not path.startswith(PULLING)
        }
        right = found == expected
        assert right or told == "given up", f"seed {SEED}, transfer {number}: {link.kinds}: silently another run"
        # What stands under its name is right, also where the pull was given up.
        assert all(expected.get(path) == data for path, data in found.items()), f"seed {SEED}, transfer {number}"
        counts[told] += 1
        counts[f"damages: {len(link.kinds)}"] += 1
        shutil.rmtree(target)
    print(f"\nseed {SEED}: {PULLS} damaged transfers: {dict(sorted(counts.items()))}; silent losses: 0")


def test_the_same_damages_change_what_tar_brings(isolated_environment: dict[str, str], tmp_path: Path) -> None:
    """A control: of these damages many are silent where nothing is hashed."""
    draw = random.Random(SEED)
    run_dir = Path(make_run(isolated_environment["HOLDFAST_RUNS"], RUN, ended()))
    make_files(run_dir, draw)
    expected = list_tree(run_dir)
    packed = subprocess.run(["tar", "-C", run_dir, "-cf", "-", "."], capture_output=True, check=True).stdout
    silent = 0
    for number in range(min(PULLS, 100)):
        target = tmp_path / f"tar-{number}"
        target.mkdir()
        at = draw.randrange(len(packed) - 5000)
        arrived = packed[:at] + flip(packed[at : at + 4096], draw) + packed[at + 4096 :]
        done = subprocess.run(["tar", "-C", target, "-xf", "-"], input=arrived, capture_output=True, check=False)
        silent += done.returncode == 0 and list_tree(target) != expected
        shutil.rmtree(target)
    print(f"\ntar: {silent} of {min(PULLS, 100)} flipped bits changed a file silently")
    assert silent
