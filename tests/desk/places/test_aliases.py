"""Aliases of ssh's configuration: what ssh itself takes for one, and what is listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.desk.places.aliases import ask_ssh, is_alias, list_aliases, read_aliases
from holdfast.transport.ssh.command import PROGRAM_VARIABLE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

CONFIG = """
# Host commented
Host gpu1 gpu2   # two
  HostName 127.0.0.1
  Port 2200
host = "quoted"
HOST\tbox*  !boxes one?
Host *
  User me
Host eq
Match host gpu1
  Include {more}
Host "unfinished
Include {missing}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.conf").write_text(f"Host second\nInclude {tmp_path}/config\n")
    (tmp_path / "more" / "a.conf").write_text("Host first\n")
    path.write_text(CONFIG.format(more=f"{tmp_path}/more/*.conf", missing=tmp_path / "none"))
    return path


def test_literal_names_are_read_through_includes_also_in_a_circle(config: Path, tmp_path: Path) -> None:
    assert read_aliases(str(config), str(tmp_path)) == ["gpu1", "gpu2", "quoted", "eq", "first", "second"]


def test_included_files_are_looked_for_where_ssh_does(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "extra").write_text("Host beside\n")
    (tmp_path / "home").write_text("Host athome\n")
    (tmp_path / "config").write_text("Include extra ~/home\n")
    assert read_aliases(str(tmp_path / "config"), str(tmp_path)) == ["beside", "athome"]


def test_a_file_that_is_not_there_or_is_a_pipe_has_no_aliases(tmp_path: Path) -> None:
    assert read_aliases(str(tmp_path / "none"), str(tmp_path)) == []
    assert read_aliases(str(tmp_path), str(tmp_path)) == []


@pytest.fixture
def wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the stead of ssh, with a configuration of its own."""
    (tmp_path / "inner").write_text("Host deep gp*\n  HostName 127.0.0.1\n")
    (tmp_path / "own").write_text(f"Host many* gpu7\n  Port 2200\nInclude {tmp_path}/inner\nHost *\n  User me\n")
    script = tmp_path / "my ssh"
    script.write_text(f'#!/bin/sh\nexec ssh -F "{tmp_path}/own" "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv(PROGRAM_VARIABLE, str(script))
    return script


def test_the_program_that_is_used_says_what_an_alias_is(wrapper: Path) -> None:
    assert [is_alias(name) for name in ("gpu7", "deep", "gpx", "many1", "nobody")] == [True, True, *[False] * 3]
    assert list_aliases() == ["gpu7", "deep"]
    view = ask_ssh("gpu7")
    assert view is not None
    assert (view.options["port"], view.options["user"]) == ("2200", "me")


@pytest.mark.parametrize("program", ["/nonexistent/ssh", "false"])
def test_without_a_working_ssh_nothing_is_an_alias(
    program: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(PROGRAM_VARIABLE, program)
    assert (is_alias("gpu1"), list_aliases(), ask_ssh("gpu1")) == (False, [], None)
