"""One box runs a job and never two: claims by exclusive creation, with beats, expiry and numbers that fence."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.host.files import claims
from holdfast.host.files.claims import BeatWatch, Claim, ClaimEnd, ClaimView, Renewal
from holdfast.host.process.offload import Offload
from holdfast.model.errors import NotPermitted, StorageError
from holdfast.model.wire import WireError
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.contract, pytest.mark.requirement("QUEUE-12")]

NOW = "2026-11-20T10:00:00.000Z"


def an_end(outcome: str = "succeeded") -> ClaimEnd:
    return ClaimEnd(outcome, "box", "/runs/x", NOW, 0)


def claimed(directory: Path, after: int = 0) -> Claim:
    claim = claims.make_claim(str(directory), after)
    assert claim is not None
    return claim


def test_of_many_boxes_that_claim_at_once_exactly_one_gets_the_job(tmp_path: Path) -> None:
    job = str(tmp_path / "job")
    work = [Offload(lambda: claims.make_claim(job, 0) is not None) for _ in range(16)]
    assert sum(bool(each.wait(LIMIT_S)) for each in work) == 1
    assert claims.look_at_claim(job).number == 1
    assert not [name for name in os.listdir(job) if name.endswith(".tmp")]


def test_a_job_that_nobody_claimed_is_free(tmp_path: Path) -> None:
    assert claims.look_at_claim(str(tmp_path / "job")) == ClaimView()
    assert ClaimView().claimable


def test_the_owner_is_named_and_its_beat_changes(tmp_path: Path) -> None:
    claim = claimed(tmp_path / "job")
    beats = set()
    for _ in range(3):
        assert claims.renew_claim(claim) is Renewal.OURS
        seen = claims.look_at_claim(claim.directory)
        beats.add(seen.beat)
    assert len(beats) == 3
    assert (seen.host, seen.token, seen.claimable) == (os.uname().nodename, claim.token, False)


def test_an_owner_that_was_taken_over_is_fenced_and_its_end_does_not_count(tmp_path: Path) -> None:
    old = claimed(tmp_path / "job")
    new = claimed(tmp_path / "job", after=old.number)
    assert claims.renew_claim(old) is Renewal.FENCED
    assert not claims.end_claim(old, an_end("failed"))
    assert claims.look_at_claim(new.directory).end is None
    assert claims.end_claim(new, an_end())
    assert claims.look_at_claim(new.directory).end == an_end()


def test_an_end_is_said_once(tmp_path: Path) -> None:
    claim = claimed(tmp_path / "job")
    assert claims.end_claim(claim, an_end())
    assert claims.end_claim(claim, an_end("failed"))
    assert claims.look_at_claim(claim.directory).end == an_end()


@pytest.mark.parametrize(
    ("outcome", "free"),
    [
        ("succeeded", False),
        ("failed", False),
        ("stopped", False),
        ("released", True),
        ("preempted", True),
        ("lost", True),
    ],
)
def test_only_an_end_that_decided_nothing_frees_the_job(tmp_path: Path, outcome: str, free: bool) -> None:
    claim = claimed(tmp_path / "job")
    claims.end_claim(claim, an_end(outcome))
    assert claims.look_at_claim(claim.directory).claimable is free


def test_a_claim_expires_only_after_its_beat_stood_still_before_our_own_eyes() -> None:
    watch = BeatWatch()
    seen = ClaimView(number=1, beat="a")
    assert not watch.has_expired("job", seen, 1000.0, 60.0)
    assert not watch.has_expired("job", seen, 1059.0, 60.0)
    moved = ClaimView(number=1, beat="b")
    assert not watch.has_expired("job", moved, 1060.0, 60.0)
    assert not watch.has_expired("job", moved, 1119.0, 60.0)
    assert watch.has_expired("job", moved, 1120.0, 60.0)
    watch.forget("job")
    assert not watch.has_expired("job", moved, 2000.0, 60.0)


def test_a_link_whose_answer_was_lost_is_known_by_its_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def answer_lost(source: str, target: str) -> None:
        real(source, target)
        raise FileExistsError(17, "the server repeated it")

    monkeypatch.setattr(os, "link", answer_lost)
    assert claims.make_claim(str(tmp_path / "job"), 0) is not None


def test_every_box_waits_as_long_as_the_directory_was_made_with(tmp_path: Path) -> None:
    first = claims.open_directory(str(tmp_path / "claims"), expiry_s=12.0)
    second = claims.open_directory(str(tmp_path / "claims"), expiry_s=600.0)
    assert first.expiry_s == second.expiry_s == 12.0


def test_a_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "claims"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(NotPermitted, match="mode 0777"):
        claims.open_directory(str(place))


def test_no_two_groups_share_the_claim_of_a_job(tmp_path: Path) -> None:
    place = claims.open_directory(str(tmp_path / "claims"))
    pairs = ["g/a", "h/a", "g/a=a", "g-a/a", "default/a", "default/configs", "default/claims.json", f"g/{'x' * 200}"]
    found = {place.job_directory(pair) for pair in pairs}
    assert len(found) == len(pairs)
    assert place.job_directory("g/lr=1e-3") == f"{place.path}/g=lr=1e-3"


def test_a_shared_disk_that_is_not_mounted_is_no_new_directory(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file") as refused:
        claims.open_directory(str(tmp_path / "disk" / "claims"))
    assert "mounted" in str(refused.value.hint)
    assert not (tmp_path / "disk").exists()
    place = tmp_path / "claims"
    place.mkdir(mode=0o700)
    # What lies under the mount point is empty: there every job would be free on every box.
    with pytest.raises(StorageError, match="not there any more"):
        claims.open_directory(str(place), make=False)
    claims.open_directory(str(place))
    assert claims.open_directory(str(place), make=False).path == str(place)


@pytest.mark.parametrize("content", ["{", '{"expiry_s": "soon"}', '{"expiry_s": 0}', "{}"])
def test_damaged_settings_are_named(tmp_path: Path, content: str) -> None:
    place = tmp_path / "claims"
    place.mkdir(mode=0o700)
    (place / claims.SETTINGS).write_text(content)
    with pytest.raises(StorageError, match=r"claims\.json"):
        claims.open_directory(str(place))


def test_a_damaged_claim_is_no_free_job(tmp_path: Path) -> None:
    claim = claimed(tmp_path / "job")
    (tmp_path / "job" / "000001.claim").write_text("torn")
    with pytest.raises(WireError):
        claims.look_at_claim(claim.directory)
    with pytest.raises(WireError):
        claims.renew_claim(claim)


@pytest.mark.parametrize("name", ["../x", "a=b/c", "a/b/c", "", ".hidden", "x" * 300, "päper"])
def test_a_name_that_is_no_file_name_gets_a_directory_of_its_own_inside(tmp_path: Path, name: str) -> None:
    place = claims.open_directory(str(tmp_path / "claims"))
    found = place.job_directory(name)
    assert os.path.dirname(found) == place.path
    assert os.path.basename(found).startswith("_")
    assert found != place.job_directory(name + "y")


def test_a_directory_that_others_could_replace_is_refused(tmp_path: Path) -> None:
    """It is closed to them itself, and whoever may write above it puts another one in its place."""
    open_to_all = tmp_path / "shared"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(NotPermitted, match=f"could be replaced by others: {open_to_all} can be written by others"):
        claims.open_directory(str(open_to_all / "claims"))
    open_to_all.chmod(0o1777)
    assert claims.open_directory(str(open_to_all / "claims")).expiry_s > 0
