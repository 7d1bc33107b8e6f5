"""A profile that is begun from what was measured on a place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.desk.profiles.read import load_profile
from holdfast.desk.profiles.scaffold import write_scaffold
from holdfast.model.errors import UsageError
from holdfast.model.place import MISSING, DiskFacts, Place
from holdfast.model.record import replace
from tests.desk.boxes import FACTS_OF_A_BOX

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files


@pytest.fixture(autouse=True)
def _config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.mark.requirement("PROF-14", "PROF-06")
def test_PROF_14_measured_disks_become_tiers_that_nobody_has_judged_yet() -> None:
    disks = (
        *FACTS_OF_A_BOX.disks,
        DiskFacts(f"{load_profile('autodl').home}/autodl-fs", "nfs4", 1, 300_000, 150_000),
        DiskFacts('/odd "name\\', "ext4"),
        DiskFacts("/odd-name", "ext4"),
    )
    place = Place("gpu1", host="gpu1", profile="autodl")
    home = load_profile("autodl").home
    of_profile = (
        DiskFacts(home, "overlay", 1, 30, 20),
        DiskFacts(f"{home}/autodl-tmp", "xfs", 1, 50, 9),
        DiskFacts("/gone", MISSING),
    )
    facts = replace(FACTS_OF_A_BOX, disks=disks, profile_disks=of_profile)
    path = write_scaffold(place, facts, "gpu1", replace=False)
    profile = load_profile("gpu1")
    tiers = {tier.name: tier for tier in profile.tiers}
    assert profile.inherits == "autodl"
    assert tiers["data-runs"].survives == {"power-off": "depends", "release": "depends"}
    assert tiers["data-runs"].cap_bytes == 1000 << 30
    assert (tiers["data"].cap_bytes, tiers["system"].cap_bytes) == (50, 30)
    assert (tiers["shared"].cap_bytes, tiers["shared"].survives["release"]) == (300_000, "yes"), (
        "measured over the constant"
    )
    assert "nfs4, a network file system, 150000 inodes were free" in tiers["shared"].note
    assert tiers["odd-name"].paths == ('/odd "name\\',)
    assert tiers["odd-name-2"].cap_bytes is None
    assert profile.facts["tiers.data-runs"].source == "measured on gpu1"
    with pytest.raises(UsageError, match="is there already"):
        write_scaffold(place, FACTS_OF_A_BOX, "gpu1", replace=False)
    assert write_scaffold(place, FACTS_OF_A_BOX, "gpu1", replace=True) == path


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="no name of a profile"):
        write_scaffold(Place("gpu1"), FACTS_OF_A_BOX, "../x", replace=False)
