"""A trainer in a process of its own, spoken to in lines."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.training.faults import support
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Trainer:
    """`payloads/trainer.py` as a child in a session of its own."""

    def __init__(self, directory: object, *options: str, numbers: int = 1000, mode: str = "ask") -> None:
        self.process = subprocess.Popen(
            support.payload("trainer", directory, numbers, mode, *options),
            env=support.environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.words = b""
        self.errors = b""
        self.children: list[int] = []

    def hear(self, key: str, timeout_s: float = LIMIT_S) -> Any:
        """The next line that has `key`."""
        found: list[Any] = []

        def look() -> bool:
            self._read()
            while b"\n" in self.words and not found:
                line, _, self.words = self.words.partition(b"\n")
                values = json.loads(line)
                if key in values:
                    found.append(values)
            return bool(found)

        def over() -> bool:
            ended = self.process.poll() is not None
            return look() or ended

        wait_until(over, timeout_s, what=f"{key} from the trainer")
        assert found, f"the trainer ended without saying {key}: {self.errors.decode()[-2000:]}"
        return found[0]

    def _read(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        while ready := select.select([self.process.stdout, self.process.stderr], [], [], 0)[0]:
            data = b""
            for pipe in ready:
                piece = os.read(pipe.fileno(), 1 << 16)
                data += piece
                if pipe is self.process.stdout:
                    self.words += piece
                else:
                    self.errors += piece
            if not data:
                break

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n".encode())
        self.process.stdin.flush()

    def resumed(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.hear("resumed")
        return answer

    def save(self) -> int:
        """Have it save; the number of its writer process."""
        self.tell("save")
        writer: int = self.hear("writer")["writer"]
        return writer

    def saved(self) -> dict[str, Any]:
        self.tell("wait")
        answer: dict[str, Any] = self.hear("path")
        return answer

    def fork(self) -> int:
        self.tell("fork")
        child: int = self.hear("child")["child"]
        self.children.append(child)
        return child

    def said(self, words: str) -> bool:
        self._read()
        return words in self.errors.decode()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def quit(self) -> int:
        with contextlib.suppress(BrokenPipeError):
            self.tell("quit")
        return self.process.wait(LIMIT_S)

    def close(self) -> None:
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        if self.process.poll() is None:
            # Its own session: the group is the trainer, what it forked, and its writer.
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def stop_process(pid: int) -> None:
    """Hold a process where it is, and wait until it stands."""
    os.kill(pid, signal.SIGSTOP)

    def stands() -> bool:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] == "T"

    wait_until(stands, what=f"{pid} stands")


@pytest.fixture
def start() -> Iterator[Callable[..., Trainer]]:
    """Starts trainers; they are gone afterwards."""
    made: list[Trainer] = []

    def begin(directory: object, *options: str, numbers: int = 1000, mode: str = "ask") -> Trainer:
        made.append(Trainer(directory, *options, numbers=numbers, mode=mode))
        return made[-1]

    yield begin
    for trainer in made:
        trainer.close()
