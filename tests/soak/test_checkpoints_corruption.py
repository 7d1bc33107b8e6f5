"""A campaign behind ``make soak``: a thousand damages of the newest checkpoint, none of them silent.

``HOLDFAST_SOAK_DAMAGES`` sets how many (1000), ``HOLDFAST_SOAK_SEED`` repeats a campaign. A plain safetensors file of
the same numbers gets the same bit flips, as a control that they are damages.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.training.errors import NoValidCheckpoint
from holdfast.training.storage import checkpoints
from tests.training.faults import support

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(3600)]

DAMAGES = int(os.environ.get("HOLDFAST_SOAK_DAMAGES", "1000"))
SEED = int(os.environ.get("HOLDFAST_SOAK_SEED", str(int.from_bytes(os.urandom(4), "big"))))
NUMBERS = 100_000
PAGES = 1 << 16


def zero_pages(path: str, draw: random.Random) -> None:
    """64 KiB become zeros, as far as the file reaches: what a lost write leaves."""
    size = os.path.getsize(path)
    at = draw.randrange(max(1, size // PAGES + 1)) * PAGES
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(bytes(min(PAGES, size - at)))


def truncate(path: str, draw: random.Random) -> None:
    os.truncate(path, draw.randrange(os.path.getsize(path)))


def append(path: str, draw: random.Random) -> None:
    with open(path, "ab") as file:
        file.write(draw.randbytes(draw.randrange(1, 5000)))


def delete(path: str, draw: random.Random) -> None:
    os.unlink(path)


def swap(path: str, draw: random.Random) -> None:
    """The same file of the checkpoint before it: both are whole by themselves."""
    other, aside = path.replace("step-2", "step-1"), f"{path}.aside"
    shutil.copy(other, aside)
    os.replace(aside, path)


KINDS: list[Callable[[str, random.Random], None]] = [
    *(support.flip_bit, zero_pages, truncate, append, delete, swap),
]


def outcome(directory: str, original: bytes, path: str) -> str:
    """What loading makes of it: `seen` is right; `harmless` when every loaded number is."""
    try:
        search = checkpoints.find_newest(directory)
    except NoValidCheckpoint:
        return "lost"
    assert search.found is not None
    found = support.whose(search.found)
    if search.found.record.step == 1:
        return "seen" if found == {1} else "silent"
    with open(path, "rb") as file:
        same = file.read() == original
    if same:
        return "not changed"
    return "harmless" if found == {2} and path.endswith("checkpoint.json") else "silent"


def control(path: str, draw: random.Random) -> bool:
    """Whether safetensors loads a flipped bit of its data without a word."""
    safetensors: Any = pytest.importorskip("safetensors.numpy")
    copy = f"{path}.control"
    shutil.copy(path, copy)
    support.flip_bit(copy, draw)
    try:
        safetensors.load_file(copy)
    except Exception:  # noqa: BLE001 - any error is a damage that was seen
        return False
    finally:
        os.unlink(copy)
    return True


@pytest.mark.requirement("CKPT-04", "CKPT-07")
def test_no_damage_of_the_newest_checkpoint_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(SEED)
    directory = str(tmp_path / "c")
    for step in (1, 2):
        assert support.save(directory, step, support.state_of(step, NUMBERS)).ok
    assert support.newest(directory) == 2
    newest = f"{directory}/step-2"
    figures: Counter[str] = Counter()
    silent, fooled, flips, began = [], 0, 0, time.monotonic()
    for number in range(DAMAGES):
        kind = KINDS[number % len(KINDS)]
        path = draw.choice(support.data_files(newest))
        with open(path, "rb") as file:
            original = file.read()
        kind(path, draw)
        answer = outcome(directory, original, path)
        figures[f"{kind.__name__}: {answer}"] += 1
        if answer in ("silent", "lost"):
            silent.append(f"#{number} {kind.__name__} of {path}: {answer}")
        with open(path, "wb") as file:
            file.write(original)
        if kind is support.flip_bit and path.endswith(".safetensors"):
            flips += 1
            fooled += control(path, draw)
    assert support.newest(directory) == 2
    with capsys.disabled():
        print(
            f"\n{DAMAGES} damages in {time.monotonic() - began:.0f} s, seed {SEED}: {len(silent)} silent; "
            f"{dict(sorted(figures.items()))}; "
            f"control: safetensors alone loaded {fooled} of {flips} flipped bits silently"
        )
    assert not silent, f"seed {SEED}:\n" + "\n".join(silent)
    assert fooled > flips // 2, "the control saw the damages: they are none"
