"""``places.toml`` as a file: whose it must be, and that a change happens whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.cli.main import may_name_place
from holdfast.desk.places.config import add_place, places_path, read_places, remove_place
from holdfast.desk.runs.presence import has_places
from holdfast.model.errors import NotPermitted, StorageError, UsageError
from holdfast.model.place import Place

pytestmark = pytest.mark.process
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file to another account")


@pytest.fixture
def config(isolated_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where places.toml is; the directory is not there yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Path(places_path())


def test_without_a_file_there_is_no_place(config: Path) -> None:
    assert read_places() == {}
    assert not config.parent.exists()


def test_a_relative_directory_is_ignored(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By those, too, who only look whether there are places."""
    add_place(Place("a", host="a"))
    monkeypatch.chdir(config.parents[2])
    monkeypatch.setenv("XDG_CONFIG_HOME", "config")
    assert os.path.exists("config/holdfast/places.toml")
    assert (has_places(), may_name_place(["ls"])) == (False, False)
    assert places_path() == f"{os.environ['HOME']}/.config/holdfast/places.toml"
    add_place(Place("a", host="a"))
    assert (has_places(), may_name_place(["ls"])) == (True, True)


def test_places_come_and_go(config: Path) -> None:
    assert add_place(Place("a", host="a")) == str(config)
    add_place(Place("b", kind="local", root="/r"))
    assert list(read_places().values()) == [Place("a", host="a"), Place("b", kind="local", root="/r")]
    assert (config.stat().st_mode & 0o777, config.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    with pytest.raises(UsageError, match=r"places\.toml:1: a"):
        add_place(Place("a", host="c"))
    add_place(Place("a", host="c"), replace=True)
    assert read_places()["a"].host == "c"
    remove_place("a")
    assert list(read_places()) == ["b"]
    with pytest.raises(UsageError, match="a is not in there"):
        remove_place("a")


def test_a_link_stays_a_link(config: Path, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles.toml"
    target.write_text("# mine\n")
    target.chmod(0o644)
    config.parent.mkdir(parents=True)
    config.symlink_to(target)
    add_place(Place("a", host="a"))
    assert config.is_symlink()
    assert target.read_text() == '# mine\n\n[a]\nhost = "a"\n'


def test_a_broken_place_can_be_removed(config: Path) -> None:
    config.parent.mkdir(parents=True)
    config.write_text('[a]\nhost = 3\n\n[b]\nhost = "b"\n')
    with pytest.raises(UsageError, match=r"places\.toml:2: a"):
        read_places()
    with pytest.raises(UsageError, match=r"places\.toml:2: a"):
        add_place(Place("c", host="c"))
    assert config.read_text() == '[a]\nhost = 3\n\n[b]\nhost = "b"\n'
    remove_place("a")
    assert list(read_places()) == ["b"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[a\n", "places.toml:1: not valid TOML"),
        (b"[a]\nhost='x'\n[a]\n", "not valid TOML"),
        (b"a = \xff", "places.toml:1: is not UTF-8 text"),
        (b"\n" * (1 << 20) + b"\n", "is larger than 1 MiB"),
        (b"a = " + b"[" * 5000, "nested too deeply"),
        (b"a = " + b"1" * 5000, "too large"),
    ],
    ids=["open", "twice", "bytes", "large", "deep", "number"],
)
def test_what_is_no_list_of_places_is_refused(data: bytes, words: str, config: Path) -> None:
    config.parent.mkdir(parents=True)
    config.write_bytes(data)
    with pytest.raises(UsageError, match=words):
        read_places()


def test_what_cannot_be_read_is_not_empty(config: Path) -> None:
    config.mkdir(parents=True)
    with pytest.raises(StorageError, match="is not a file"):
        read_places()
    config.rmdir()
    os.mkfifo(config)
    with pytest.raises(StorageError, match="is not a file"):
        read_places()
    config.unlink()
    config.parent.rmdir()
    config.parent.write_text("in the way")
    with pytest.raises(StorageError, match="Not a directory"):
        read_places()


@pytest.mark.parametrize("mode", [0o602, 0o666, 0o1666, 0o620])
def test_a_file_that_others_may_write_is_refused_with_the_command_that_mends_it(mode: int, config: Path) -> None:
    config.parent.mkdir(parents=True, mode=0o700)
    config.write_text('[a]\nhost = "a"\n')
    os.chown(config, -1, 1) if os.geteuid() == 0 else None
    config.chmod(mode)
    if mode == 0o620 and os.geteuid() != 0:
        pytest.skip("the group may be ours alone")
    with pytest.raises(NotPermitted, match="others could have written it") as caught:
        read_places()
    assert caught.value.hint.endswith(f"chmod go-w {config}")
    with pytest.raises(NotPermitted):
        add_place(Place("b", host="b"))


def test_a_directory_that_others_may_write_is_refused(config: Path) -> None:
    add_place(Place("a", host="a"))
    config.parent.chmod(0o777)
    with pytest.raises(NotPermitted, match="others could have written it") as caught:
        read_places()
    assert caught.value.hint.endswith(f"chmod go-w {config.parent}")


@needs_root
def test_a_file_of_another_account_is_refused(config: Path) -> None:
    add_place(Place("a", host="a"))
    os.chown(config, 60_001, -1)
    with pytest.raises(NotPermitted, match="belongs to uid 60001"):
        read_places()


KILLED = """
import os, sys
from holdfast.desk.places import config
from holdfast.host.files import files
from holdfast.model.place import Place
def stop(event, _args):
    # The moment before the new file gets its name, or right after.
    if event == {event!r}:
        os.kill(os.getpid(), 9)
sys.addaudithook(stop)
config.add_place(Place("new", host="new"))
"""


@pytest.mark.parametrize("event", ["os.rename", "os.chmod"])
def test_a_kill_while_it_is_written_leaves_the_old_file(event: str, config: Path) -> None:
    add_place(Place("a", host="a"))
    before = config.read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED.format(event=event)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert config.read_bytes() == before
    add_place(Place("b", host="b"))
    assert list(read_places()) == ["a", "b"]


def test_two_who_add_at_once_both_stay(config: Path) -> None:
    add_place(Place("a0", host="x"))
    names = [f"b{n}" for n in range(8)]
    threads = [threading.Thread(target=add_place, args=(Place(name, host=name),)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read_places()) == ["a0", *names]
