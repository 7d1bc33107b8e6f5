"""Real git repositories for tests, and a box whose entries are real processes here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast.model.errors import InternalError, list_errors
from holdfast.model.place import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAIN = Path(holdfast.__file__).parent / "agent" / "__main__.py"


def git(place: Path, *words: str) -> str:
    """Run git in a directory; what it printed."""
    settings = ("-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "protocol.file.allow=always")
    command = ["git", *settings, "-c", "commit.gpgsign=false", "-c", "init.defaultBranch=main", *words]
    return subprocess.run(command, cwd=place, check=True, capture_output=True, text=True).stdout


def write(top: Path, files: dict[str, bytes | str]) -> Path:
    """Write files below a directory."""
    for name, data in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return top


def make_repository(top: Path, files: dict[str, bytes | str]) -> Path:
    """A repository in which these files are committed."""
    write(top, files)
    git(top, "init", "-q")
    git(top, "add", "-A", "-f")
    git(top, "commit", "-q", "-m", "first")
    return top


class _Facts:
    def __init__(self, root: str) -> None:
        self.root = root


class EntryBox:
    """Stands for `transfer.box.Box`: each entry is the real process, over a pipe instead of ssh."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.place = Place("box", host="box")
        self.asked: list[str] = []
        self.sent = 0
        self.cut_after: int | None = None
        """Of the next stream that many bytes arrive."""

    def ensure(self) -> _Facts:
        return _Facts(str(self.root))

    def entry(
        self,
        name: str,
        words: Sequence[str] = (),
        *,
        stdin: bytes | Iterable[bytes] = b"",
        limit_s: float,
        stall_s: float | None = None,
    ) -> dict[str, Any]:
        del stall_s
        self.asked.append(words[0])
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(MAIN), name, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with child:
            assert child.stdin is not None
            assert child.stdout is not None
            cut = self._feed(child.stdin, (stdin,) if isinstance(stdin, bytes) else stdin)
            out = child.stdout.read()
        if cut:
            raise list_errors()["cut_off"]("the link was cut")
        answer: dict[str, Any] = json.loads(out)
        if "error" in answer:
            error = answer["error"]
            cls = list_errors().get(error["code"], InternalError)
            raise cls(error["message"], hint=error["hint"], details=error["details"])
        return answer

    def _feed(self, stdin: Any, pieces: Iterable[bytes]) -> bool:
        left = None
        if not isinstance(pieces, tuple):
            left, self.cut_after = self.cut_after, None
        try:
            for piece in pieces:
                now = piece if left is None else piece[:left]
                left = None if left is None else left - len(now)
                stdin.write(now)
                self.sent += len(now)
                if left == 0:
                    return True
            stdin.flush()
        except BrokenPipeError:
            pass
        finally:
            try:
                stdin.close()
            except BrokenPipeError:
                pass
        return False


def list_tree(top: Path) -> dict[str, bytes]:
    """Every file below a directory with its content; of a link its target."""
    found = {}
    for path in sorted(top.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(top))] = os.fsencode(os.readlink(path))
        elif path.is_file():
            found[str(path.relative_to(top))] = path.read_bytes()
    return found
