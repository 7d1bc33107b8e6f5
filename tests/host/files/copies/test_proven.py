"""Copies are proven file by file; what was good stays good whatever happens to them."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from holdfast.host.files import files
from holdfast.host.files.copies import proven
from holdfast.host.files.copies.progress import Progress
from holdfast.host.files.copies.proven import CopyError, SourceProblem, copy_all, prove_all, survey
from holdfast.host.process import libc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.files


@pytest.fixture
def source(tmp_path: Path) -> Path:
    top = tmp_path / "run"
    (top / "artifacts" / "deep").mkdir(parents=True)
    (top / "artifacts" / "a").write_bytes(b"one")
    (top / "artifacts" / "deep" / "b").write_bytes(b"two" * 1000)
    (top / "artifacts" / ".hidden").write_bytes(b"3")
    return top


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts tmpfs with options."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    mounted: list[Path] = []

    def make(options: str) -> Path:
        path = tmp_path / f"disk-{len(mounted)}"
        path.mkdir()
        libc.mount("tmpfs", str(path), kind="tmpfs", options=options)
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        libc.umount(str(path), flags=libc.MNT_DETACH)


def copy(source: Path, target: Path, *patterns: str) -> None:
    sources, _ = survey(str(source), patterns or ("artifacts",), optional=False)
    copy_all(sources, str(target), Progress())


def list_names(top: Path) -> list[str]:
    return sorted(os.path.join(root, name) for root, _, names in os.walk(top) for name in names)


def test_a_copy_has_every_file_with_its_bytes_and_nothing_else(source: Path, tmp_path: Path) -> None:
    sources, left = survey(str(source), ("artifacts",), optional=False)
    progress, target = Progress(), tmp_path / "to"
    copied = copy_all(sources, str(target), progress)
    assert [file.path for file in copied] == ["artifacts/.hidden", "artifacts/a", "artifacts/deep/b"]
    assert copied[1].sha256 == hashlib.sha256(b"one").hexdigest()
    assert progress.read()[:4] == (3, 3004, 3, 3004)
    assert left == []
    assert len(list_names(target)) == 3
    assert prove_all(copied, str(target)) == []


def test_what_is_left_out_is_named(source: Path) -> None:
    artifacts = source / "artifacts"
    (artifacts / "best").symlink_to("a")
    (artifacts / "dir").symlink_to("deep")
    (artifacts / "gone").symlink_to("nowhere")
    os.mkfifo(artifacts / "pipe")
    (artifacts / ".state.json.12.0123abcd.tmp").write_bytes(b"{")
    sources, left = survey(str(source), ("artifacts/**", "artifacts/a"), optional=False)
    assert [item.path for item in sources] == [f"artifacts/{name}" for name in (".hidden", "a", "best", "deep/b")]
    assert {item.path.removeprefix("artifacts/") for item in left} == {
        *("dir", "gone", "pipe", ".state.json.12.0123abcd.tmp")
    }


@pytest.mark.parametrize(("patterns", "words"), [(("model.pt",), "not there"), (("artifacts/no*",), "not there")])
def test_a_pattern_that_names_nothing_is_refused(source: Path, patterns: tuple[str, ...], words: str) -> None:
    with pytest.raises(SourceProblem, match=words):
        survey(str(source), patterns, optional=False)


def test_nothing_to_copy_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "artifacts").mkdir()
    with pytest.raises(SourceProblem, match="nothing to copy"):
        survey(str(tmp_path), ("artifacts", "metrics"), optional=True)


@pytest.mark.requirement("VRFY-14", "VRFY-08")
def test_again_proves_what_is_there_and_mends_what_is_not(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "to"
    copy(source, target)
    before = {name: os.stat(name).st_ino for name in list_names(target)}
    bad, torn = target / "artifacts" / "a", target / "artifacts" / "deep" / ".b.99.0123abcd.tmp"
    times = os.stat(bad)
    bad.write_bytes(b"ONE")
    os.utime(bad, ns=(times.st_atime_ns, times.st_mtime_ns))
    torn.write_bytes(b"half")
    copy(source, target)
    assert bad.read_bytes() == b"one"
    assert not torn.exists()
    after = {name: os.stat(name).st_ino for name in list_names(target)}
    assert [name for name in before if before[name] != after[name]] == [str(bad)]


@pytest.mark.requirement("B-26")
def test_a_whole_copy_is_not_written_over_by_what_changed_since(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "to"
    sources, _ = survey(str(source), ("artifacts",), optional=False)
    known = {file.path: file for file in copy_all(sources, str(target), Progress())}
    (source / "artifacts" / "a").write_bytes(b"two")
    with pytest.raises(SourceProblem, match="artifacts/a is not what the whole copy"):
        copy_all(sources, str(target), Progress(), known=known)
    assert (target / "artifacts" / "a").read_bytes() == b"one"


@pytest.mark.gotcha("U33")
@pytest.mark.parametrize(
    ("options", "words"), [("size=64k", r"No space left"), ("size=1m,nr_inodes=3", "no inode is free|inodes")]
)
def test_a_far_side_that_is_full_is_a_failure_with_its_reason(
    source: Path, disk: Callable[[str], Path], options: str, words: str
) -> None:
    (source / "artifacts" / "big").write_bytes(os.urandom(100_000))
    target = disk(options)
    sources, _ = survey(str(source), ("artifacts",), optional=False)
    with pytest.raises(CopyError, match=words):
        copy_all(sources, str(target), Progress())
    assert not [name for name in list_names(target) if name.endswith(".tmp")]
    with pytest.raises(CopyError, match=r"are needed|inodes are free"):
        proven.check_room(sources, str(target / "new"))


def test_a_far_side_that_is_read_only_or_gone_is_a_failure(
    source: Path, tmp_path: Path, disk: Callable[[str], Path]
) -> None:
    place = disk("size=1m,ro")
    with pytest.raises(CopyError, match="Read-only file system"):
        copy(source, place / "run")
    with pytest.raises(CopyError, match="No such file"):
        proven.make_target(str(tmp_path / "unmounted" / "results"))


def test_what_changes_while_it_is_copied_is_no_copy(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files.write_all

    def grow(descriptor: int, data: bytes) -> None:
        real(descriptor, data)
        with open(source / "artifacts" / "a", "ab") as file:
            file.write(b"!")

    monkeypatch.setattr(files, "write_all", grow)
    with pytest.raises(CopyError, match="changed while it was copied"):
        copy(source, tmp_path / "to", "artifacts/a")
    assert list_names(tmp_path / "to") == []


def test_what_does_not_read_back_is_no_copy(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = files.write_all
    monkeypatch.setattr(files, "write_all", lambda far, data: real(far, data.replace(b"o", b"0")))
    with pytest.raises(CopyError, match="what was read back is not what was written"):
        copy(source, tmp_path / "to", "artifacts/a")
    assert list_names(tmp_path / "to") == []


def test_nothing_is_written_through_a_link_of_the_far_side(tmp_path: Path) -> None:
    for name in ("here/artifacts", "there", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "here" / "artifacts" / "a").write_bytes(b"1")
    (tmp_path / "there" / "artifacts").symlink_to(tmp_path / "elsewhere")
    sources, _ = survey(str(tmp_path / "here"), ["artifacts"], optional=False)
    with pytest.raises(CopyError, match="directory there is a link"):
        copy_all(sources, str(tmp_path / "there"), Progress())
    assert not list((tmp_path / "elsewhere").iterdir())


def test_what_another_account_has_put_where_a_copy_is_to_be_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("changing owners needs root")
    shared, mine = tmp_path / "shared", tmp_path / "mine"
    mine.mkdir()
    shared.mkdir()
    proven.refuse_foreign(str(shared / "run"))
    (shared / "run").symlink_to(mine)
    proven.refuse_foreign(str(shared / "run"))
    os.lchown(shared / "run", 4711, 4711)
    with pytest.raises(SourceProblem, match=r"run is a link of another account \(uid 4711\)"):
        proven.refuse_foreign(str(shared / "run"))
    os.chown(shared, 4711, 4711)  # whoever owns the directory above may do there what they will
    proven.refuse_foreign(str(shared / "run"))
