"""The block devices behind a file system, by sysfs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.host.files.block_devices import find_block_devices

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files


def plant(system: Path) -> None:
    """A partition of a disk, and a mapped device on it, as sysfs shows them."""
    part, mapped = system / "devices/pci0/nvme0n1/nvme0n1p2", system / "devices/virtual/dm-0"
    for directory in (part, mapped / "slaves", system / "dev/block", system / "devices/pci0/nvme0n1/slaves"):
        directory.mkdir(parents=True, exist_ok=True)
    (part / "partition").write_text("2\n")
    (mapped / "slaves/nvme0n1p2").symlink_to(part)
    (system / "dev/block/259:2").symlink_to(part)
    (system / "dev/block/253:0").symlink_to(mapped)


@pytest.mark.requirement("DIAG-02")
def test_a_mapped_device_is_followed_down_to_its_whole_disk(tmp_path: Path) -> None:
    plant(tmp_path)
    found = {
        number: find_block_devices(os.makedev(*number), "none", system=str(tmp_path)) for number in ((259, 2), (253, 0))
    }
    assert found == {(259, 2): ("nvme0n1p2", "nvme0n1"), (253, 0): ("dm-0", "nvme0n1p2", "nvme0n1")}


def test_what_has_no_device_that_can_be_told_is_not_called_empty(tmp_path: Path) -> None:
    plant(tmp_path)
    for source in ("overlay", "/nowhere", str(tmp_path), "/dev/null"):
        assert find_block_devices(os.makedev(0, 51), source, system=str(tmp_path)) is None
