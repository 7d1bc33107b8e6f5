"""Choosing the lease directory, and refusing one that cannot be trusted."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.host.files.filesystems import NETWORK_FILESYSTEMS, filesystem_of
from holdfast.host.lease import area as lease_area
from holdfast.host.lease.area import describe_crowds, open_area, refresh_area
from holdfast.host.lease.survey import survey_leases
from holdfast.model.errors import HoldfastError, NotPermitted, StorageError
from tests.host.lease_support import NOBODY, Child, Line

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another account")


def places(root: Path) -> tuple[str, ...]:
    """Three usual places, whose parents exist."""
    found = []
    for name in ("var", "run", "shm"):
        (root / name).mkdir()
        (root / name).chmod(0o1777)
        found.append(str(root / name / "holdfast"))
    return tuple(found)


@pytest.mark.requirement("LEASE-06", "B-09")
def test_LEASE_06_the_first_place_is_created_for_everybody_whatever_the_umask(tmp_path: Path) -> None:
    candidates = places(tmp_path)
    previous = os.umask(0o077)
    try:
        area = open_area(environ={}, candidates=candidates)
    finally:
        assert os.umask(previous) == 0o077
    assert area.directories == candidates[:1]
    assert os.stat(candidates[0]).st_mode & 0o7777 == 0o1777
    assert not os.path.exists(candidates[1])


def test_a_place_that_cannot_be_made_is_passed_over(tmp_path: Path) -> None:
    candidates = places(tmp_path)
    missing = (str(tmp_path / "none" / "holdfast"), *candidates[1:])
    assert open_area(environ={}, candidates=missing).directories == (candidates[1],)
    with pytest.raises(StorageError, match="none can be made") as caught:
        open_area(environ={}, candidates=missing[:1])
    assert "install -d -m 1777" in caught.value.hint


def test_every_existing_place_is_in_force_and_a_new_one_is_found_again(tmp_path: Path) -> None:
    candidates = places(tmp_path)
    os.mkdir(candidates[2])
    os.chmod(candidates[2], 0o1777)
    area = open_area(environ={}, candidates=candidates)
    assert area.directories == (candidates[2],)
    assert not lease_area.has_grown(area)
    os.mkdir(candidates[0])
    os.chmod(candidates[0], 0o1777)
    assert lease_area.has_grown(area)
    assert refresh_area(area).directories == (candidates[0], candidates[2])


def test_environment_then_rules_then_the_usual_places(tmp_path: Path) -> None:
    named, ruled = str(tmp_path / "named"), str(tmp_path / "ruled")
    assert open_area(ruled, environ={"HOLDFAST_LEASE_DIR": named}).directories == (named,)
    assert open_area(ruled, environ={}).directories == (ruled,)


def test_looking_alone_creates_nothing(tmp_path: Path) -> None:
    candidates = places(tmp_path)
    assert open_area(environ={}, candidates=candidates, create=False).directories == ()
    assert open_area(str(tmp_path / "named"), environ={}, create=False).directories == ()
    assert not any(os.path.exists(path) for path in (*candidates, str(tmp_path / "named")))


@pytest.mark.requirement("LEASE-06", "B-10")
def test_LEASE_06_no_usual_place_is_one_that_is_cleaned_or_private() -> None:
    for path in lease_area.DEFAULT_DIRECTORIES:
        assert not path.startswith(("/tmp", "/var/tmp"))


def test_an_area_under_tmp_says_so(public_path: Path) -> None:
    area = open_area(str(public_path / "area"), environ={})
    assert ("temporary directory" in " ".join(area.warnings)) == str(public_path).startswith(("/tmp", "/var/tmp"))


@pytest.mark.requirement("LEASE-06", "B-09")
def test_LEASE_06_a_planted_symlink_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "area").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="symbolic link"):
        open_area(str(tmp_path / "area"), environ={})


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "area").touch()
    with pytest.raises(StorageError, match="not a directory"):
        open_area(str(tmp_path / "area"), environ={})


def test_our_own_unsticky_open_directory_is_made_sticky(tmp_path: Path) -> None:
    path = tmp_path / "area"
    path.mkdir()
    path.chmod(0o777)
    open_area(str(path), environ={})
    assert path.stat().st_mode & 0o7777 == 0o1777


def test_a_directory_for_us_alone_works_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "area"
    path.mkdir(mode=0o700)
    assert "not open to other accounts" in " ".join(open_area(str(path), environ={}).warnings)


def open_as_nobody(path: Path) -> list[str]:
    """What another account gets: ["ok", warnings...] or the error's class, message and hint."""

    def work(line: Line) -> None:
        try:
            area = open_area(str(path), environ={})
        except HoldfastError as error:
            line.send([type(error).__name__, str(error), error.hint])
        else:
            line.send(["ok", *area.directories, *area.warnings])

    with Child(work, uid=NOBODY) as child:
        answer: list[str] = child.receive()
        return answer


@needs_root
@pytest.mark.requirement("LEASE-06", "B-09")
def test_LEASE_06_another_account_uses_what_root_made(public_path: Path) -> None:
    open_area(str(public_path / "area"), environ={})
    assert open_as_nobody(public_path / "area")[:2] == ["ok", str(public_path / "area")]


@needs_root
def test_a_directory_closed_to_us_is_not_permitted_and_says_what_to_do(public_path: Path) -> None:
    (public_path / "area").mkdir(mode=0o755)
    kind, message, hint = open_as_nobody(public_path / "area")
    assert kind == NotPermitted.__name__
    assert "cannot write" in message
    assert "chmod 1777" in hint


@needs_root
def test_a_directory_that_its_owner_can_empty_is_refused_unless_sticky(public_path: Path) -> None:
    path = public_path / "area"
    path.mkdir()
    path.chmod(0o777)
    assert open_as_nobody(path)[0] == StorageError.__name__
    os.chown(path, 1, 1)
    path.chmod(0o755)
    with pytest.raises(StorageError, match="can remove the leases"):
        open_area(str(path), environ={})
    path.chmod(0o1777)
    assert "could remove lock files" in " ".join(open_area(str(path), environ={}).warnings)


@needs_root
def test_a_planted_place_beside_the_administrators_is_ignored_and_alone_it_is_refused(public_path: Path) -> None:
    candidates = places(public_path)
    os.mkdir(candidates[1])
    os.chown(candidates[1], 1, 1)
    with pytest.raises(StorageError):
        open_area(environ={}, candidates=candidates)
    os.mkdir(candidates[0])
    os.chmod(candidates[0], 0o1777)
    area = open_area(environ={}, candidates=candidates)
    assert area.directories == candidates[:1]
    assert "ignored" in area.warnings[0]


@needs_root
def test_the_administrators_place_that_goes_during_the_look_is_an_error_in_words(
    public_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates = places(public_path)
    os.mkdir(candidates[0], 0o700)
    os.symlink("nowhere", candidates[1])
    check = lease_area._check

    def remove_first(path: str) -> tuple[str, ...]:
        if path == candidates[1]:
            os.rmdir(candidates[0])
        return check(path)

    monkeypatch.setattr(lease_area, "_check", remove_first)
    with pytest.raises(StorageError, match="is a symbolic link"):
        open_area(environ={}, candidates=candidates)


@pytest.mark.requirement("LEASE-06")
def test_who_could_replace_the_directory_is_told_of(public_path: Path) -> None:
    public_path.chmod(0o777)
    words = f"{public_path} can be written by others (mode 0777): {public_path}/leases could be replaced"
    assert any(warning.startswith(words) for warning in open_area(str(public_path / "leases"), environ={}).warnings)
    public_path.chmod(0o1777)
    assert "replaced" not in str(open_area(str(public_path / "leases"), environ={}).warnings)


@pytest.mark.requirement("RAIL-15")
def test_who_fills_the_directory_is_named(public_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    area = open_area(str(public_path / "leases"), environ={})
    assert describe_crowds(area) == ()
    monkeypatch.setattr("holdfast.host.lease.area.CROWD", 200)
    for number in range(200):
        os.symlink("/nowhere", public_path / "leases" / f"x{number}")
    assert "has 200 files, most of them of " in describe_crowds(area)[0]
    assert describe_crowds(area)[0] in survey_leases(area, ()).warnings


def test_the_file_system_of_a_path_is_that_of_its_mount() -> None:
    kind, device = filesystem_of("/proc/self")
    assert kind == "proc"
    assert device.split(":")[0].isdigit()
    assert "nfs4" in NETWORK_FILESYSTEMS
