"""The document checks find each kind of fault, and the project's own documents have none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scripts.check_docs import check_changelog, check_code_names, check_links, check_lock

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

HASHES = [f"    --hash=sha256:{digit * 64}" for digit in "0a"]
LOCK = "# Locked\nclick==8.1 ; python_version < '3.11' \\\n" + " \\\n".join(HASHES) + "\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_good_changelog(tmp_path: Path) -> None:
    text = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- x\n\n## [0.1.0] - 2026-01-31\n"
    assert list(check_changelog(write(tmp_path / "c.md", text))) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("## [0.1.0] - 2026-01-31\n", "the first version must be"),
        ("", "the first version must be"),
        ("## [Unreleased]\n### News\n", "c.md:2: 'News' is not one of"),
        ("## [Unreleased]\n## 0.1\n", "c.md:2: not '## [Unreleased]'"),
    ],
)
def test_changelog_faults(text: str, fault: str, tmp_path: Path) -> None:
    assert any(fault in line for line in check_changelog(write(tmp_path / "c.md", text)))


def test_links(tmp_path: Path) -> None:
    text = "[a](here.md) [b](gone.md#part) [c](#part) [d](https://example.org)\n```\n[e](also-gone.md)\n```\n![f](gone.svg)\n"
    path = write(tmp_path / "here.md", text)
    places = ((1, "gone.md#part"), (5, "gone.svg"))
    assert list(check_links(path)) == [f"{path}:{line}: the link leads nowhere: {name}" for line, name in places]


def test_a_block_of_code_without_an_end_hides_no_link(tmp_path: Path) -> None:
    path = write(tmp_path / "here.md", "a\n```\n[b](gone.md)\n")
    assert list(check_links(path)) == [f"{path}:2: the block of code has no end, so no link after it was followed"]


def test_a_good_lock(tmp_path: Path) -> None:
    assert list(check_lock(write(tmp_path / "l.txt", LOCK))) == []


@pytest.mark.parametrize(
    "line",
    ["--index-url https://example.org/simple", "click>=8.1", "click @ file:///tmp/click", "-e .", "click==8.1"],
)
def test_a_lock_holds_nothing_but_versions_and_hashes(line: str, tmp_path: Path) -> None:
    path = write(tmp_path / "l.txt", LOCK + line + "\n")
    assert list(check_lock(path)) == [f"{path}:5: not a locked requirement or its hash: {line}"]


def test_code_that_a_text_names_is_there(tmp_path: Path) -> None:
    (tmp_path / "p" / "host" / "files").mkdir(parents=True)
    (tmp_path / "p" / "host" / "__init__.py").touch()
    write(tmp_path / "p" / "host" / "files" / "disks.py", "def measure(): ...\n")
    good = "`host/files/`, `host/files/disks.py`, `host.files.disks.measure`, `holdfast.host` and `model.0.weight`\n"
    bad = "`host/disks.py`\n`host.files.disks.weigh`\n`host.gpus`\n`src/holdfast/core/x.py`\n`desk/gone.py`\n"
    assert list(check_code_names(write(tmp_path / "good.md", good), tmp_path / "p")) == []
    faults = list(check_code_names(write(tmp_path / "bad.md", bad), tmp_path / "p"))
    assert [line.split("there is no ")[1] for line in faults] == [
        *("host/disks.py", "host.files.disks.weigh", "host.gpus", "core/x.py", "desk/gone.py"),
    ]
