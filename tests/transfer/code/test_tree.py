from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from holdfast.core.code import manifest as limits
from holdfast.core.code.manifest import parse_manifest
from holdfast.model.errors import PreflightFailed, StorageError, UsageError
from holdfast.transfer.code import listing
from holdfast.transfer.code.tree import read_tree

from .repositories import git, make_repository, write

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.transfer.code.tree import CodeTree

pytestmark = pytest.mark.process


def read(workdir: Path) -> CodeTree:
    return read_tree(str(workdir), os.environ)


def paths(tree: CodeTree) -> list[str]:
    return [entry.path for entry in tree.entries]


def test_a_tree_is_what_git_sees_changed_and_untracked_files_included(tmp_path: Path) -> None:
    top = make_repository(
        tmp_path / "r",
        {
            "train.py": "1",
            "gone.py": "1",
            "old.py": "1",
            "lib/a.py": "1",
            ".gitignore": "*.ckpt\nout/\n",
            "kept.ckpt": "1",
        },
    )
    first = read(top)
    assert paths(first) == [".gitignore", "gone.py", "kept.ckpt", "lib/a.py", "old.py", "train.py"]
    assert first.ref.dirty is False
    assert first.ref.commit == git(top, "rev-parse", "HEAD").strip()

    (top / "gone.py").unlink()
    git(top, "mv", "old.py", "new.py")
    write(top, {"train.py": "2", "untracked.py": "1", "x.ckpt": "1", "out/y": "1", "näme\n with lines.txt": "1"})
    (top / "lib/a.py").chmod(0o755)
    second = read(top)

    assert paths(second) == [
        *(".gitignore", "kept.ckpt", "lib/a.py", "new.py", "näme\n with lines.txt", "train.py", "untracked.py"),
    ]
    assert {entry.path for entry in second.entries if entry.kind == "x"} == {"lib/a.py"}
    assert second.ref.dirty is True
    assert second.ref.tree != first.ref.tree
    assert (second.ref.files, second.warnings) == (7, ())


def test_copies_of_runs_that_were_pulled_into_the_tree_stay_here(tmp_path: Path) -> None:
    mark = '{"place": "gpu1", "run_id": "20261123-100000-a-0a1b", "taken_at": "2026-11-23T10:00:00Z", "live": false}'
    pulled = {
        "home/copy.json": mark,
        "home/inner/train.py": "1",
        "all/a/copy.json": mark,
        "all/a/run.json": "1",
        "data/copy.json": "{}",
        "homes/x": "1",
    }
    repository = make_repository(tmp_path / "r", {"train.py": "1"})
    for top in (repository, write(tmp_path / "plain", {"train.py": "1"})):
        write(top, dict(pulled))
        assert paths(read(top)) == ["data/copy.json", "homes/x", "train.py"]
    assert paths(read(tmp_path / "plain/home/inner")) == ["train.py"]
    git(repository, "add", "home")
    assert "home/inner/train.py" in paths(read(repository))


def test_the_tree_is_the_whole_repository_and_the_job_runs_in_a_directory_of_it(tmp_path: Path) -> None:
    top = make_repository(tmp_path / "r", {"a/train.py": "1", "b/lib.py": "1"})
    found = read(top / "a")
    assert paths(found) == ["a/train.py", "b/lib.py"]
    assert found.ref.workdir == "a"
    assert found.top == str(top)
    assert read(top).ref.tree == found.ref.tree


def test_a_name_that_is_no_text_is_sent_as_it_is(tmp_path: Path) -> None:
    top = make_repository(tmp_path / "r", {"a.py": "1"})
    (top / os.fsdecode(b"caf\xe9.py")).write_text("1")
    assert os.fsencode(paths(read(top))[1]) == b"caf\xe9.py"


def test_what_was_tracked_below_a_directory_that_is_a_link_now_is_deleted(tmp_path: Path) -> None:
    """As git says it: else the tree has a link and files below it, or files from outside of it."""
    top = make_repository(tmp_path / "r", dict.fromkeys(("a.py", "common/z", "configs/x.yaml", "data/y.yaml"), "1"))
    git(top, "mv", "configs", "common/")
    git(top, "reset", "-q")
    (top / "configs").symlink_to("common/configs")
    outside = write(tmp_path / "outside", {"y.yaml": "another's"})
    (top / "data/y.yaml").unlink()
    (top / "data").rmdir()
    (top / "data").symlink_to(outside)
    assert " D data/y.yaml" in git(top, "status", "--porcelain").splitlines()

    found = read(top)

    assert paths(found) == ["a.py", "common/configs/x.yaml", "common/z", "configs"]
    assert parse_manifest(found.manifest.data) == found.manifest
    (words,) = found.warnings
    assert "data -> " in words


def test_variables_of_git_and_a_hook_that_calls_us_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = make_repository(tmp_path / "r", {"a.py": "1"})
    other = make_repository(tmp_path / "other", {"b.py": "1"})
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    assert paths(read(top)) == ["a.py"]


def test_a_repository_without_a_commit_or_in_the_midst_of_a_merge(tmp_path: Path) -> None:
    top = write(tmp_path / "r", {"a.py": "1"})
    git(top, "init", "-q")
    assert paths(read(top)) == ["a.py"]
    assert read(top).ref.commit is None
    git(top, "add", "-A")
    git(top, "commit", "-qm", "1")
    git(top, "checkout", "-qb", "side")
    write(top, {"a.py": "2"})
    git(top, "commit", "-qam", "2")
    git(top, "checkout", "-q", "main")
    write(top, {"a.py": "3"})
    git(top, "commit", "-qam", "3")
    with pytest.raises(Exception, match="git"):
        git(top, "merge", "-q", "side")
    assert paths(read(top)) == ["a.py"]


def test_submodules_and_repositories_inside_come_with_their_files_and_are_named(tmp_path: Path) -> None:
    part = make_repository(tmp_path / "part", {"mod.py": "1"})
    top = make_repository(tmp_path / "r", {"a.py": "1", ".holdfastignore": "*.tmp\n"})
    git(top, "submodule", "--quiet", "add", str(part), "sub")
    git(top, "submodule", "--quiet", "add", str(part), "empty")
    git(top, "commit", "-qm", "2")
    git(top, "submodule", "--quiet", "deinit", "-f", "empty")
    make_repository(top / "inner", {"in.py": "1"})
    write(top, {"sub/dirty.py": "1", "sub/x.tmp": "1", "inner/y.tmp": "1"})

    found = read(top)

    shown = [path for path in paths(found) if not path.startswith(".")]
    assert shown == ["a.py", "inner/in.py", "sub/dirty.py", "sub/mod.py"]
    assert any("inner, sub" in words or "sub, inner" in words for words in found.warnings)
    assert any("submodule update --init): empty" in words for words in found.warnings)


def test_pointers_of_lfs_and_links_out_of_the_tree_are_named(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 5\n"
    top = make_repository(tmp_path / "r", {"model.bin": pointer, "a/b.py": "1"})
    (top / "inside").symlink_to("a/b.py")
    (top / "dangling").symlink_to("a/none.py")
    (top / "absolute").symlink_to("/etc")
    (top / "a" / "up").symlink_to("../../x")
    (top / "here").symlink_to(".")
    (top / "a" / "sly").symlink_to("../here/..")

    found = read(top)

    assert [entry.path for entry in found.entries if entry.kind == "l"] == ["dangling", "here", "inside"]
    assert any("git lfs pull): model.bin" in words for words in found.warnings)
    (outside,) = [words for words in found.warnings if words.startswith("links")]
    assert all(name in outside for name in ("absolute -> /etc", "a/up -> ../../x", "a/sly -> ../here/.."))


def test_without_git_it_is_the_directory_without_the_usual_caches(tmp_path: Path) -> None:
    top = write(
        tmp_path / "r",
        {
            "a.py": "1",
            "b/c.py": "1",
            "notes.log": "1",
            ".holdfastignore": "*.log\n/skip/\n",
            **dict.fromkeys(("skip/x", "b/skip/y", "__pycache__/a.pyc", "wandb/x", ".venv/lib/x.py"), "1"),
            **dict.fromkeys(("myenv/pyvenv.cfg", "myenv/lib/x.py"), "1"),
        },
    )
    found = read(top)
    assert paths(found) == [".holdfastignore", "a.py", "b/c.py", "b/skip/y"]
    assert found.ref.commit is None
    assert found.ref.dirty is None


def test_where_git_is_not_installed_the_work_tree_is_taken_and_that_is_said(tmp_path: Path) -> None:
    top = make_repository(tmp_path / "r", {"a.py": "1"})
    found = read_tree(str(top), {**os.environ, "PATH": str(tmp_path)})
    assert paths(found) == ["a.py"]
    assert "git is not installed" in found.warnings[0]


def test_a_working_directory_that_git_leaves_out_is_taken_alone(tmp_path: Path) -> None:
    top = make_repository(tmp_path / "r", {"a.py": "1", ".gitignore": "play/\n"})
    write(top, {"play/train.py": "1"})
    found = read(top / "play")
    assert paths(found) == ["train.py"]
    assert found.ref.workdir == ""
    assert "git leaves" in found.warnings[0]


def test_holdfastignore_leaves_out_tracked_files_too_and_takes_in_what_git_leaves_out(tmp_path: Path) -> None:
    top = make_repository(
        tmp_path / "r", {"a.py": "1", "docs/x.md": "1", ".gitignore": "*.cfg\n", ".holdfastignore": "docs/\n!my.cfg\n"}
    )
    write(top, {"my.cfg": "1", "other.cfg": "1"})
    assert paths(read(top)) == [".gitignore", ".holdfastignore", "a.py", "my.cfg"]


@pytest.mark.requirement("XPORT-14")
def test_XPORT_14_private_keys_and_credentials_are_refused_with_the_list(tmp_path: Path) -> None:
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----\n"
    top = make_repository(tmp_path / "r", {"a.py": "1", "keys/deploy.txt": "notes\n" + key})
    write(top, {".env": "HF_TOKEN=x", "id_ed25519": "short", "id_ed25519.pub": "ssh-ed25519 AAAA"})
    with pytest.raises(PreflightFailed) as caught:
        read(top)
    text = str(caught.value)
    assert "private keys, which never leave: keys/deploy.txt, id_ed25519" in text
    assert "hold credentials: .env" in text
    assert "id_ed25519.pub" not in text
    assert ".holdfastignore" in caught.value.hint

    write(top, {".holdfastignore": "keys/\nid_ed25519\n!.env\n"})
    assert ".env" in paths(read(top))
    write(top, {".holdfastignore": "!keys/deploy.txt\nid_ed25519\n.env\n"})
    with pytest.raises(PreflightFailed, match=r"keys/deploy\.txt"):
        read(top)


def test_a_key_deep_in_a_large_file_is_found_across_the_pieces_that_are_read(tmp_path: Path) -> None:
    key = b"\n-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n"
    for shift in (0, 20, len(key) - 1):
        top = write(tmp_path / f"r{shift}", {"log.txt": b"x" * ((1 << 20) - shift) + key})
        with pytest.raises(PreflightFailed, match=r"log\.txt"):
            read(top)


def test_large_untracked_files_and_sockets_are_refused_with_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = make_repository(tmp_path / "r", {"a.py": "1", "tracked.bin": "1"})
    for name in ("tracked.bin", "big.ckpt"):
        with (top / name).open("wb") as file:
            file.truncate(101 * 1024**2)
    with pytest.raises(PreflightFailed) as caught:
        read(top)
    assert "big.ckpt (101" in str(caught.value)
    assert "tracked.bin" not in str(caught.value)

    plain = write(tmp_path / "plain", {"a.py": "1"})
    os.mkfifo(plain / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(plain)
        server.bind("sock")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(PreflightFailed, match="pipe, sock"):
            read(plain)


def test_a_tree_beyond_all_measure_is_refused_before_it_is_read(tmp_path: Path) -> None:
    top = make_repository(tmp_path / "r", {"a.py": "1", "data/x/1.bin": "1", "data/y/2.bin": "1"})
    for name in ("data/x/1.bin", "data/y/2.bin"):
        with (top / name).open("wb") as file:
            file.truncate(limits.MOST_BYTES // 2 + 1)
    with pytest.raises(PreflightFailed, match=r"largest directories: data/x \(1 GiB\), data/y"):
        read(top)


@pytest.mark.requirement("XPORT-16", "PRE-11")
@pytest.mark.gotcha("U26")
def test_XPORT_16_windows_line_ends_of_scripts_are_mended_and_that_is_said(tmp_path: Path) -> None:
    crooked = make_repository(tmp_path / "r", {"run.sh": "#!/bin/sh\r\necho a\r\n", "notes.txt": "a\r\n"})
    straight = make_repository(tmp_path / "s", {"run.sh": "#!/bin/sh\necho a\n", "notes.txt": "a\r\n"})
    found = read(crooked)
    assert found.ref.tree == read(straight).ref.tree
    assert found.mended == {"run.sh"}
    assert "Unix line ends, which shells need: run.sh" in found.warnings[0]
    assert read(crooked) == found  # remembered, the same is said


@pytest.mark.requirement("PRE-16", "B-28")
def test_PRE_16_requirements_that_replace_the_framework_are_named(tmp_path: Path) -> None:
    top = make_repository(tmp_path / "r", {"requirements.txt": "torch==2.1\ntorchmetrics\nnumpy\n"})
    (words,) = read(top).warnings
    assert words.startswith("requirements.txt would replace the framework")
    assert words.endswith("torchmetrics, numpy")


def test_what_was_read_is_remembered_and_a_change_of_any_kind_is_seen(tmp_path: Path) -> None:
    top = make_repository(tmp_path / "r", {f"{n}.py": str(n) for n in range(20)})
    for path in top.glob("*.py"):
        os.utime(path, (1_000_000, 1_000_000))
    first = read(top)
    seen = (top / "3.py").stat()
    write(top, {"3.py": "x"})
    os.utime(top / "3.py", ns=(seen.st_atime_ns, seen.st_mtime_ns))
    second = read(top)
    assert second.ref.tree != first.ref.tree
    write(top, {"3.py": "3"})
    assert read(top).ref.tree == first.ref.tree


def test_a_damaged_memory_is_forgotten(tmp_path: Path) -> None:
    top = make_repository(tmp_path / "r", {"a.py": "1"})
    tree = read(top).ref.tree
    (memory,) = list((tmp_path / "isolated/cache/holdfast/code").iterdir())
    for content in (b"", b"[]", b'{"format":1,"epoch":"","files":{"a.py":[1]}}', b"\xff" * 10):
        memory.write_bytes(content)
        assert read(top).ref.tree == tree


def test_a_broken_repository_is_an_error_with_the_words_of_git(tmp_path: Path) -> None:
    top = make_repository(tmp_path / "r", {"a.py": "1"})
    (top / ".git" / "index").write_bytes(b"rubbish")
    with pytest.raises(StorageError, match=r"git cannot list .*index"):
        read(top)
    with pytest.raises(StorageError, match="not a directory"):
        read(tmp_path / "nothing")


def test_the_marks_of_an_environment_do_not_hide_the_tree_itself(tmp_path: Path) -> None:
    top = write(tmp_path / "r", {"pyvenv.cfg": "", "a.py": "1"})
    assert paths(read(top)) == ["a.py", "pyvenv.cfg"]
    assert listing.CACHES.isdisjoint({"src", "data", "env"})


def test_what_is_no_project_is_refused_before_it_is_read(tmp_path: Path) -> None:
    home = tmp_path / "home" / "me"
    home.mkdir(parents=True)
    write(home, {"project/train.py": "1"})
    environ = {**os.environ, "HOME": str(home)}
    for wrong in ("/", "/proc/self", "/usr", str(home), str(home.parent)):
        with pytest.raises(UsageError, match="is no directory of a project") as refused:
            read_tree(wrong, environ)
        assert "--no-code sends nothing" in refused.value.hint
    assert [entry.path for entry in read_tree(str(home / "project"), environ).entries] == ["train.py"]
