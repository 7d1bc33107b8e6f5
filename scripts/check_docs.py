"""Check what no other tool checks: the changelog's form, links between documents, names of code, and the lock files.

Prints one line for each fault, `file:line: what is wrong`, and exits 1 when there is one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = {".git", ".venv", "build", "dist", "_vendor", "node_modules"}

VERSION_HEADING = re.compile(r"## \[(Unreleased|\d+\.\d+\.\d+)\](?: - \d{4}-\d{2}-\d{2})?")
# Source: keepachangelog.com 1.1.0, "Types of changes".
CHANGE_KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^\s*(```|~~~)")

LAYERS = "|".join(sorted(path.name for path in (ROOT / "src/holdfast").iterdir() if path.is_dir()))
# In backquotes: a path below the package (`host/files/files.py`, `core/run/`), or a dotted name (`host.files.files`).
CODE_PATH = re.compile(rf"`(?:src/holdfast/)?((?:{LAYERS})/[\w/]*(?:\.py)?)`")
CODE_NAME = re.compile(rf"`(?:holdfast\.)?((?:{LAYERS})(?:\.[a-z_A-Z]\w*)+)(?:\(\))?`")

LOCKED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==\S+( ;.*)? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def check_changelog(path: Path) -> Iterator[str]:
    """The first version is Unreleased; headings are those of Keep a Changelog."""
    lines = path.read_text(encoding="utf-8").splitlines()
    versions = [(n, line) for n, line in enumerate(lines, start=1) if line.startswith("## ")]
    for number, line in versions:
        if not VERSION_HEADING.fullmatch(line):
            yield f"{path}:{number}: not '## [Unreleased]' or '## [x.y.z] - date': {line}"
    for number, line in enumerate(lines, start=1):
        if line.startswith("### ") and line[4:] not in CHANGE_KINDS:
            yield f"{path}:{number}: {line[4:]!r} is not one of {', '.join(sorted(CHANGE_KINDS))}"
    if not versions or versions[0][1] != "## [Unreleased]":
        yield f"{path}:1: the first version must be '## [Unreleased]'"


def check_links(path: Path) -> Iterator[str]:
    """Each link to a file of the project, and each picture, leads somewhere. Blocks of code have none, and an end."""
    fenced = 0
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if FENCE.match(line):
            fenced = 0 if fenced else number
        if fenced:
            continue
        for target in LINK.findall(line):
            name = target.partition("#")[0]
            if "://" in target or target.startswith("mailto:") or not name:
                continue
            if not (path.parent / name).exists():
                yield f"{path}:{number}: the link leads nowhere: {target}"
    if fenced:
        yield f"{path}:{fenced}: the block of code has no end, so no link after it was followed"


def check_code_names(path: Path, package: Path) -> Iterator[str]:
    """Each file, folder, module and name of ours that a text names in backquotes is there."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        for name in CODE_PATH.findall(line):
            if not (package / name).exists():
                yield f"{path}:{number}: there is no {name}"
        for name in CODE_NAME.findall(line):
            if not is_code_name(name, package):
                yield f"{path}:{number}: there is no {name}"


def is_code_name(name: str, package: Path) -> bool:
    """Whether a dotted name leads to a folder, a module, or a word that the module contains."""
    place, words = package, name.split(".")
    for position, word in enumerate(words):
        if (place / word).is_dir():
            place /= word
            continue
        module = place / f"{word}.py"
        if module.exists():
            rest = words[position + 1 :]
        else:
            module, rest = place / "__init__.py", words[position:]
        text = module.read_text(encoding="utf-8") if module.exists() else ""
        return all(re.search(rf"\b{each}\b", text) for each in rest)
    return True


def check_lock(path: Path) -> Iterator[str]:
    """Exact versions and hashes, and nothing else: no index host, no option, no path."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not (line.startswith("#") or LOCKED.fullmatch(line) or HASH.fullmatch(line)):
            yield f"{path}:{number}: not a locked requirement or its hash: {line.strip()[:80]}"


def find_faults(root: Path) -> Iterator[str]:
    """Every fault under `root`."""
    changelog = root / "CHANGELOG.md"
    if changelog.exists():
        yield from check_changelog(changelog)
    else:
        yield f"{changelog}:1: there is no changelog"
    for path in sorted(root.rglob("*.md")):
        if not SKIPPED.intersection(path.relative_to(root).parts):
            yield from check_links(path)
            if path != changelog and "adr" not in path.parts:
                yield from check_code_names(path, root / "src" / "holdfast")
    for path in sorted((root / "src").rglob("*.py")):
        if not SKIPPED.intersection(path.relative_to(root).parts):
            yield from check_code_names(path, root / "src" / "holdfast")
    for path in sorted((root / "requirements").glob("*.txt")):
        yield from check_lock(path)


if __name__ == "__main__":
    FAULTS = list(find_faults(ROOT))
    for fault in FAULTS:
        print(fault)
    sys.exit(1 if FAULTS else 0)
