"""What a login shell has in its environment: of each kind of shell, whatever it prints, asks or does wrong."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.host.process.login_shell import LoginShellSilent, read_login_environment
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

FILES = {
    "/bin/bash": (
        ".bash_profile",
        "echo Hi; echo 'Warning: quota' >&2; read -p 'Which project? ' x; export A='b\nc'\n",
    ),
    "/bin/dash": (".profile", "echo Welcome; export A='b\nc'\n"),
    "/usr/bin/zsh": (".zprofile", "echo Welcome; export A='b\nc'\n"),
    "/usr/bin/tcsh": (".login", "echo Welcome; setenv A 'b\\\nc'\n"),
    "/usr/bin/bsd-csh": (".cshrc", "echo Welcome; setenv A 'b\\\nc'\n"),
    "/usr/bin/fish": (".config/fish/config.fish", "echo Welcome; status is-login; and set -x A 'b\nc'\n"),
}


def read(home: Path, shell: str, *, limit_s: float = LIMIT_S) -> dict[str, str]:
    environ = {"HOME": str(home), "PATH": "/usr/bin:/bin", "SHELL": shell, "KEPT": "1"}
    return read_login_environment(environ, shell=shell, limit_s=limit_s)


@pytest.mark.parametrize("shell", FILES)
def test_a_shell_that_prints_and_asks_tells_its_environment(tmp_path: Path, shell: str) -> None:
    if not os.path.exists(shell):
        pytest.skip(f"{shell} is not installed")
    name, text = FILES[shell]
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    found = read(tmp_path, shell)
    assert (found["A"], found["KEPT"], "_" in found, "PWD" in found) == ("b\nc", "1", False, False)


def test_a_python_of_an_old_glibc_can_ask_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spawn = os.posix_spawn

    def spawn_there(*args: Any, **options: Any) -> int:
        # Source: CPython, Modules/posixmodule.c: without POSIX_SPAWN_SETSID, which came with glibc 2.26.
        if options.get("setsid"):
            raise NotImplementedError("posix_spawn: setsid unavailable on this platform")
        return spawn(*args, **options)

    monkeypatch.setattr(os, "posix_spawn", spawn_there)
    assert read(tmp_path, "/bin/sh")["KEPT"] == "1"


def test_what_only_an_interactive_shell_sets_is_there_too(tmp_path: Path) -> None:
    (tmp_path / ".bash_profile").write_text(". ~/.bashrc\n")
    (tmp_path / ".bashrc").write_text("case $- in *i*) ;; *) return;; esac\nPATH=$HOME/conda/bin:$PATH\n")
    assert read(tmp_path, "/bin/bash")["PATH"].startswith(f"{tmp_path}/conda/bin:")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo 'no such module: cuda' >&2\nexit 3\n", "ended before its prompt; it said last: no such module: cuda"),
        (
            "echo waiting for the licence\nexec sleep 60\n",
            "did not come to its prompt within 1 s; it said last: waiting",
        ),
        ("exec head -c 6000000 /dev/zero\n", "more than 4 MiB"),
    ],
)
def test_a_shell_that_gives_none_is_named_with_its_last_words(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / ".profile").write_text(text)
    with pytest.raises(LoginShellSilent) as silent:
        read(tmp_path, "/bin/dash", limit_s=1)
    assert words in str(silent.value)


def test_a_shell_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoginShellSilent, match="/no/such/shell could not be started: No such file"):
        read(tmp_path, "/no/such/shell")
