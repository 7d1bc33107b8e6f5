"""Asks the image's torch for the leased cards, from inside the container and before its gate is opened (CTR-08, U31).

What preflight asks of the box's own Python (`checks.framework`) is asked here of the Python that the command runs
under: `in_job.enter` runs the same small program, which makes no CUDA context, and leaves its words in the room. They
are judged outside, with the same judge. What is not told (no torch, no Python) holds nothing up, as there. Of a command
that is no Python's (``bash train.sh``), or has lines of setup before it, the image's own Python is asked: a torch in it
that was not built for cards says nothing of the command.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.checks.framework import PROGRAM, FrameworkUnread, NoFramework, judge_words, read_words
from holdfast.core.container.command import DeviceGrant
from holdfast.core.control_characters import one_line
from holdfast.model.container import ANSWER, QUESTION
from holdfast.model.finding import Finding, Level
from holdfast.model.record import record
from holdfast.model.run import Refusal
from holdfast.model.units import format_count

from .plan import CARDS

if TYPE_CHECKING:
    from holdfast.core.container.command import CardsInside
    from holdfast.model.job import JobSpec

    from .room import Room

LARGEST = 256 << 10
ANSWERED = "answered"
"""The last line of an answer. As `in_job.enter` writes it."""
GUESSED = "guessed"
"""A line of what is said begins so: the command may run under another Python. As `in_job.enter` writes it."""
SLICE = "MIG-"


@record
class Answer:
    """What came back: `finished` while nothing is to be waited for; `refusal` where the command must not run."""

    finished: bool
    findings: tuple[Finding, ...] = ()
    refusal: Refusal | None = None


def put_question(room: Room, spec: JobSpec, cards: CardsInside) -> None:
    """Have the first program inside ask, where the job has real cards and wants them proven."""
    if spec.gpu.verify and cards.how not in (DeviceGrant.NONE, DeviceGrant.SIMULATED):
        room.put(QUESTION, PROGRAM.encode())
        room.put(ANSWER, of_both=True)


def read_answer(room: Room, image: str) -> Answer:
    """The answer as it stands."""
    if not os.path.exists(f"{room.path}/{QUESTION}") or not room.has_python():
        return Answer(finished=True)
    # Its end: an image's start-up code may print before.
    lines = room.read(ANSWER, LARGEST, end=True).splitlines()
    if lines[-1:] != [ANSWERED]:
        return Answer(finished=False)
    guessed = room.read_word(f"{GUESSED} ")
    findings = judge_words(lines[:-1], f"{one_line(guessed, 200) or 'Python'} of {image}")
    if guessed and not _is_for_cards(lines[:-1]):
        return Answer(True, findings)
    worst = next((one for one in findings if one.level is Level.FAIL), None) or _count(
        lines[:-1], room.read(CARDS).strip()
    )
    if worst is None:
        return Answer(finished=True, findings=findings)
    hint = f"{worst.remedy}; for a job without torch: gpu: {{verify: false}}"
    return Answer(True, findings, Refusal(worst.id, 78, f"{worst.subject}: {worst.evidence}", hint))


def _is_for_cards(lines: list[str]) -> bool:
    """Whether this torch was built for NVIDIA's cards: beside one for the CPU the command may have another."""
    try:
        return read_words(lines, "torch").cuda is not None
    except (FrameworkUnread, NoFramework):
        return False


def _count(lines: list[str], leased: str) -> Finding | None:
    """Whether torch counts other cards than the leased ones (LEASE-09); of slices CUDA shows the first alone."""
    try:
        facts = read_words(lines, "torch")
    except (FrameworkUnread, NoFramework):
        return None
    wanted = leased.split(",")
    if facts.devices is None or any(name.startswith(SLICE) for name in wanted) or facts.devices == len(wanted):
        return None
    seen = (
        f"lease mismatch: torch {facts.version} sees {format_count(facts.devices, 'card')} in the container, "
        f"{format_count(len(wanted), 'is', 'are')} leased"
    )
    do = "see how the runtime gives cards: holdfast's docs/containers.md"
    return Finding("framework.cuda", Level.FAIL, "torch", seen, do)
