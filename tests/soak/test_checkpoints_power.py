"""A campaign behind ``make soak``: the power goes right after "durable", on ext4 and on xfs, 100 times each.

The disk is built so that it forgets what was not flushed, as one with a cache of its own does::

    store (xfs with reflinks) > drive.img > drive (xfs) > disk.img > disk (ext4 or xfs) > checkpoints

What the file system under test writes goes to disk.img, whose pages are the cache of the drive; only a flush brings
them to drive.img. A cut clones drive.img at one instant (FICLONE) and mounts what is in the clone: each file system
replays its journal as after a real cut. What was written and not flushed is gone, in any order. As a control that this
harness loses what is not synced, torch.save, safetensors and our own writer without its fsync go through it too.

``HOLDFAST_SOAK_CUTS`` sets how many cuts for each file system (100), ``HOLDFAST_SOAK_SEED`` repeats a campaign.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.training.storage import checkpoints
from holdfast.training.storage.checkpoints import Retention
from holdfast.training.storage.write.save import Saver
from tests.training.faults import disks, support

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(3600)]

CUTS = int(os.environ.get("HOLDFAST_SOAK_CUTS", "100"))
SEED = int(os.environ.get("HOLDFAST_SOAK_SEED", str(int.from_bytes(os.urandom(4), "big"))))
NUMBERS = 500_000
CONTROLS = 10
# Source: ioctl_ficlone(2).
FICLONE = 0x40049409
DISK_MIB, DRIVE_MIB, STORE_MIB = 320, 700, 1500
"""xfs wants at least 300 MiB."""


class Box:
    """A machine's storage, and the places where it is looked at after the power went."""

    def __init__(self, root: Path, kind: str, stack: contextlib.ExitStack) -> None:
        self.root, self.kind = root, kind
        disks.need("mkfs.xfs", f"mkfs.{kind}", "losetup")
        disks.make_image(root / "store.img", STORE_MIB, "xfs", ["-m", "reflink=1"])
        device = stack.enter_context(disks.attached(root / "store.img"))
        self.store = stack.enter_context(disks.mounted(device, root / "store"))
        disks.make_image(self.store / "drive.img", DRIVE_MIB, "xfs")
        device = stack.enter_context(disks.attached(self.store / "drive.img"))
        drive = stack.enter_context(disks.mounted(device, root / "drive"))
        # Written in full, so that the drive itself allocates nothing later.
        with (drive / "disk.img").open("wb") as file:
            for _ in range(DISK_MIB):
                file.write(bytes(1 << 20))
        disks.run(
            "mkfs.xfs" if kind == "xfs" else "mkfs.ext4", "-q", "-f" if kind == "xfs" else "-F", str(drive / "disk.img")
        )
        device = stack.enter_context(disks.attached(drive / "disk.img"))
        self.disk = stack.enter_context(disks.mounted(device, root / "disk"))
        disks.run("sync", "-f", str(self.disk))
        disks.run("sync", "-f", str(drive))

    def cut(self) -> Path:
        """Take what is on the platters now."""
        clone = self.store / "cut.img"
        with contextlib.suppress(FileNotFoundError):
            clone.unlink()
        with open(self.store / "drive.img", "rb") as source, open(clone, "wb") as target:
            fcntl.ioctl(target, FICLONE, source.fileno())
        return clone

    @contextlib.contextmanager
    def after_power_on(self, clone: Path) -> Iterator[Path]:
        """The disk as the next boot finds it."""
        with contextlib.ExitStack() as stack:
            device = stack.enter_context(disks.attached(clone))
            drive = stack.enter_context(disks.mounted(device, self.root / "drive-after", "nouuid"))
            device = stack.enter_context(disks.attached(drive / "disk.img"))
            options = ["nouuid"] if self.kind == "xfs" else []
            yield stack.enter_context(disks.mounted(device, self.root / "disk-after", *options))


@pytest.fixture(params=["ext4", "xfs"])
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Box]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(disks.private_mounts())
        yield Box(tmp_path, request.param, stack)


def judge(disk: Path, announced: int) -> str:
    """What a power cut left of the checkpoints; empty when it is what was promised."""
    directory = str(disk / "c")
    try:
        seen = support.steps(directory)
    except FileNotFoundError:
        return f"nothing is there; step {announced} was durable"
    if not seen or max(seen) < announced:
        return f"{seen} are there; step {announced} was durable"
    for step in seen:
        verdict = checkpoints.verify(f"{directory}/step-{step}")
        if not verdict.ok:
            return f"step {step} is visible and wrong: {verdict.problems[0]}"
        if support.whose(checkpoints.load_checkpoint(verdict.path)) != {step}:
            return f"step {step} is a mix"
    return ""


@pytest.mark.requirement("CKPT-05", "LIB-06")
def test_what_was_said_to_be_durable_outlives_the_power(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    draw, began = random.Random(SEED), time.monotonic()
    saver = Saver(str(box.disk / "c"), Retention(2))
    wrong, newer = [], 0
    try:
        for step in range(1, CUTS + 1):
            announced = step
            saver.save(step, support.state_of(step, NUMBERS), {}).result()
            if step % 2 == 0:
                # Every other time while the next save is under way, which must not have touched this one.
                ahead = saver.save(step + CUTS * 10, support.state_of(step + CUTS * 10, NUMBERS), {})
                time.sleep(draw.uniform(0.0, 0.05))
            clone = box.cut()
            if step % 2 == 0:
                ahead.result()
            with box.after_power_on(clone) as disk:
                problem = judge(disk, announced)
                newer += max(support.steps(disk / "c"), default=0) > announced
            if problem:
                wrong.append(f"cut {step}: {problem}")
            if step % 2 == 0:
                # Out of the way of the steps to come.
                os.rename(ahead.result(), box.disk / f"aside-{step}")
                disks.run("rm", "-rf", str(box.disk / f"aside-{step}"))
    finally:
        saver.close()
    with capsys.disabled():
        print(
            f"\n{box.kind}: {CUTS} cuts in {time.monotonic() - began:.0f} s, seed {SEED}: "
            f"{CUTS - len(wrong)} of {CUTS} right; {newer} of {CUTS // 2} cuts in a save found that save complete"
        )
    assert not wrong, f"seed {SEED}:\n" + "\n".join(wrong)


def peers(disk: Path) -> dict[str, tuple[Callable[[int], None], Callable[[Path, int], bool]]]:
    """Others' ways to save, as their documentation shows them, and whether what they saved is there and right."""
    torch: Any = pytest.importorskip("torch")
    safetensors: Any = pytest.importorskip("safetensors.torch")

    def holdfast_without_fsync(step: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", lambda _: None)
            assert support.save(disk / "c", step, support.state_of(step, NUMBERS)).ok

    def tensors(step: int) -> dict[str, Any]:
        return {"w": torch.full((NUMBERS,), float(step), dtype=torch.float64), "b": torch.full((9,), step)}

    def right(state: dict[str, Any], step: int) -> bool:
        return bool((state["w"] == step).all() and (state["b"] == step).all())

    return {
        "torch.save": (
            lambda step: torch.save(tensors(step), disk / f"step_{step}.pt"),
            lambda after, step: right(torch.load(after / f"step_{step}.pt"), step),
        ),
        "safetensors": (
            lambda step: safetensors.save_file(tensors(step), disk / f"step_{step}.safetensors"),
            lambda after, step: right(safetensors.load_file(after / f"step_{step}.safetensors"), step),
        ),
        "holdfast without fsync": (holdfast_without_fsync, lambda after, step: not judge(after, step)),
    }


@pytest.mark.requirement("CKPT-05", "B-25")
def test_the_harness_loses_what_nobody_synced(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    lost: Counter[str] = Counter()
    for name, (save, right) in peers(box.disk).items():
        for step in range(1, CONTROLS + 1):
            save(step)
            with box.after_power_on(box.cut()) as disk:
                try:
                    lost[name] += not right(disk, step)
                except Exception:  # noqa: BLE001 - whatever the peer raises, the save is not there
                    lost[name] += 1
        disks.run("sync", "-f", str(box.disk))
    with capsys.disabled():
        print(f"\n{box.kind}, control: lost right after the save returned, of {CONTROLS}: {dict(lost)}")
    assert all(lost[name] > CONTROLS // 2 for name in ("torch.save", "safetensors", "holdfast without fsync"))
