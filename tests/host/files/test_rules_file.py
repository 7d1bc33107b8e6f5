"""The rules file counts only when it is trustworthy, and one that is not is an error, not an absence."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.core.rules.rules import Rules
from holdfast.host.files.rules_file import read_rules
from holdfast.model.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.requirement("ETIQ-09")]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def write(path: Path, text: str, mode: int = 0o644) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_ETIQ_09_no_file_has_the_defaults(tmp_path: Path) -> None:
    assert read_rules({}, machine_file=str(tmp_path / "none")) == Rules()
    assert read_rules({"HOLDFAST_RULES": str(tmp_path / "x/y")}, machine_file=str(tmp_path / "none")) == Rules()


def test_ETIQ_09_the_named_file_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "rules.toml", 'max_hold = "1h"\n')
    rules = read_rules({"HOLDFAST_RULES": path}, machine_file=str(tmp_path / "none"))
    assert rules.max_hold_s == 3600.0
    assert rules.sources == (path,)


@pytest.mark.parametrize(
    ("text", "mode", "seen"),
    [
        ('max_hold = "soon"', 0o644, "rules.toml:1: max_hold: 'soon' is not a duration"),
        ('max_hold = "1h"', 0o664, "can be written by others (mode 0664)"),
        ('max_hold = "1h"', 0o646, "can be written by others (mode 0646)"),
        ("x" * 70_000, 0o644, "is larger than 64 KiB"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, mode: int, seen: str) -> None:
    path = write(tmp_path / "rules.toml", text, mode)
    with pytest.raises(StorageError, match="rules file") as caught:
        read_rules({"HOLDFAST_RULES": path}, machine_file=str(tmp_path / "none"))
    assert seen in str(caught.value)
    assert caught.value.hint


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_bytes(b"nice = 3\n\xff\xfe")
    with pytest.raises(StorageError, match="not UTF-8"):
        read_rules({"HOLDFAST_RULES": str(path)}, machine_file=str(tmp_path / "none"))


def test_a_directory_or_a_pipe_in_its_place_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (str(tmp_path), str(tmp_path / "pipe")):
        with pytest.raises(StorageError, match="not a regular file"):
            read_rules({"HOLDFAST_RULES": path}, machine_file=str(tmp_path / "none"))


def test_a_directory_in_which_others_can_rename_is_refused(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    path = write(loose / "rules.toml", "nice = 3\n")
    loose.chmod(0o777)
    with pytest.raises(StorageError, match="others can replace it"):
        read_rules({"HOLDFAST_RULES": path}, machine_file=str(tmp_path / "none"))


@needs_root
def test_a_machine_file_that_is_not_roots_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rules.toml", "nice = 3\n")
    os.chown(path, 65534, 65534)
    with pytest.raises(StorageError, match="belongs to uid 65534"):
        read_rules({}, machine_file=path)


@needs_root
def test_ETIQ_09_a_variable_cannot_lift_the_machines_rules(tmp_path: Path) -> None:
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == 0 and not directory.stat().st_mode & 0o001:
            directory.chmod(directory.stat().st_mode | 0o011)
    machine = write(tmp_path / "machine.toml", 'max_hold = "1h"\n')
    own = write(tmp_path / "own.toml", 'max_hold = "100h"\nmax_cards = 1\n')
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            rules = read_rules({"HOLDFAST_RULES": own}, machine_file=machine)
            os.write(writer, f"{rules.max_hold_s} {rules.max_cards}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    answer = os.read(reader, 100)
    os.close(reader)
    os.waitpid(child, 0)
    assert answer == b"3600.0 1"
    as_root = read_rules({"HOLDFAST_RULES": own}, machine_file=machine)
    assert as_root.max_hold_s == 360000.0
