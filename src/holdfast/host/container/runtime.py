"""What the rest of holdfast asks of a runtime, whichever it is.

A runtime is asked through its own command line: the same program, sockets, contexts and configuration that the person
has. Each call is a child with a deadline, because a daemon may be down, refuse, or hang; the job itself never waits for
one. Nothing here knows runs: only names, ids and labels.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from holdfast.core.container.command import ContainerPlan
from holdfast.core.container.references import ImageReference
from holdfast.host.formats.packages import find_command
from holdfast.host.process.children import BoundedChild, read_children
from holdfast.model.container import ContainerRecord, ResolvedImage, RuntimeName
from holdfast.model.record import record

MOST_BYTES = 8 << 20
ASK_S = 20.0
"""A daemon under load answers within seconds; one that does not in this time hangs."""
CREATE_S = 120.0
"""A store that copies (vfs) takes long for an image of ten gigabytes."""
LONGEST_WORDS = 600


class RuntimeProblem(Exception):
    """A runtime said no, or nothing. `why` are its own words, `remedy` what to do.

    `missing`: the image is not here. `silent`: it gave no answer, and may yet do what it was asked.
    """

    def __init__(self, why: str, remedy: str = "", *, missing: bool = False, silent: bool = False) -> None:
        """`why` follows the runtime's name in a sentence."""
        super().__init__(why)
        self.why, self.remedy, self.missing, self.silent = why, remedy, missing, silent


@record
class FoundContainer:
    """A container that carries our labels. `running` as the runtime says it."""

    id: str
    run_id: str
    attempt: int
    run_dir: str
    running: bool


class Runtime(Protocol):
    """One runtime, with the program and the environment of whoever asked for the run."""

    name: RuntimeName
    program: str
    warned: str
    """What it said beside the id when it created a container; empty when nothing."""

    def resolve(self, image: ImageReference) -> ResolvedImage:
        """The image as it is on this box; nothing is fetched.

        Raises:
            RuntimeProblem: it is not here, or the runtime does not answer.
        """

    def describe_pull(self, image: ImageReference) -> str:
        """The command that gets an image that is not here."""

    def create(self, plan: ContainerPlan, environ: Mapping[str, str]) -> str:
        """Create the container, in place of a dead one of the same run and attempt; its id. Nothing is started.

        Raises:
            RuntimeProblem: it could not be.
        """

    def find_init(self, container: ContainerRecord) -> int | None:
        """The pid of its first process as the runtime tells it; None when it does not run (yet).

        That it is this box's, and this container's, is for `recorded.prove_first` to say.
        """

    def signal(self, container: str, number: int) -> None:
        """Have the runtime signal the container's first process.

        Raises:
            RuntimeProblem: it did not.
        """

    def unpause(self, container: str) -> None:
        """Let a container go on that somebody has paused.

        Raises:
            RuntimeProblem: it is not known to go on.
        """

    def was_out_of_memory(self, container: str) -> bool:
        """Whether the kernel killed inside for want of memory: of a group that is gone with its counters, its word.

        Raises:
            RuntimeProblem: it does not say.
        """

    def find_own(self, container: str, run_id: str, run_dir: str) -> str:
        """The id of the container of that name or id, if its labels name this run; else, or without one, empty.

        Raises:
            RuntimeProblem: it gives no answer, or the one of that id is by its labels another's.
        """

    def remove(self, container: str) -> None:
        """End and remove a container, by its id: a name may be another's. One that is not there is removed.

        Raises:
            RuntimeProblem: it may still be there.
        """

    def list_ours(self) -> tuple[FoundContainer, ...]:
        """All containers that carry our label, running or not.

        Raises:
            RuntimeProblem: they cannot be listed.
        """


def find_program(name: str, environ: Mapping[str, str]) -> str | None:
    """The runtime's program on the caller's PATH; None when it is not there."""
    return find_command(name, {"PATH": environ.get("PATH") or os.defpath}, os.getcwd())


def call(
    argv: Sequence[str], environ: Mapping[str, str], *, within_s: float = ASK_S, given: str = ""
) -> tuple[int, str]:
    """Run a command to its end; its exit code and its output with its errors. It reads `given` on its standard input.

    Raises:
        RuntimeProblem: it cannot be started, or gave no answer in time.
    """
    return call_all([argv], environ, within_s=within_s, given=given)[0]


def call_all(
    commands: Sequence[Sequence[str]], environ: Mapping[str, str], *, within_s: float = ASK_S, given: str = ""
) -> list[tuple[int, str]]:
    """Run commands side by side, as `call` does.

    Raises:
        RuntimeProblem: one cannot be started, or gave no answer in time.
    """
    children: list[BoundedChild] = []
    stdin = _hold_text(given) if given else None
    try:
        children.extend(
            BoundedChild(tuple(argv), environ, MOST_BYTES, with_errors=True, stdin=stdin) for argv in commands
        )
    except OSError as error:
        for child in children:
            child.end()
        raise RuntimeProblem(f"cannot be started: {error.strerror}") from error
    finally:
        if stdin is not None:
            os.close(stdin)
    read_children(children, within_s)
    answers = []
    for child, argv in zip(children, commands, strict=True):
        if child.code is None or child.code < 0:
            why = f"gave no answer: {child.describe(' '.join(argv[:2]))}"
            raise RuntimeProblem(why, explain_silence(argv[0]), silent=True)
        answers.append((child.code, child.data.decode("utf-8", "replace")))
    return answers


def explain_silence(program: str) -> str:
    """What to do about a runtime that gives no answer."""
    name = os.path.basename(program)
    if name == "docker":
        return "its daemon hangs: whoever runs the box restarts it (systemctl restart docker); or take runtime: podman"
    return f"see the disk of its image store, and whether it answers: {name} info"


def _hold_text(text: str) -> int:
    """A pipe with all of a text in it, which was never on a disk.

    Raises:
        RuntimeProblem: it is longer than a pipe holds.
    """
    data = os.fsencode(text)
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        written = os.write(writer, data)
    finally:
        os.close(writer)
    os.set_blocking(reader, True)
    if written < len(data):
        os.close(reader)
        raise RuntimeProblem(f"takes no more than {written} bytes of variables that it would obey itself")
    return reader


def parse_json(text: str) -> Any:  # noqa: ANN401 - a JSON value
    """The JSON in an answer that may have warnings in front; None when there is none."""
    for index, line in enumerate(lines := text.splitlines()):
        if line.lstrip().startswith(("[", "{")):
            try:
                return json.loads("\n".join(lines[index:]))
            except ValueError:
                continue
    return None


def shorten(text: str) -> str:
    """A runtime's own words for a message: its last lines, without JSON."""
    words = " ".join(
        line.strip() for line in text.strip().splitlines()[-4:] if not line.startswith(("Run '", "{", "["))
    )
    return words[-LONGEST_WORDS:] or "said nothing"
