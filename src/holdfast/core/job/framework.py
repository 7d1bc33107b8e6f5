"""Judges whether driver, framework build and card fit, and if not, which one is at fault (PRE-10). Pure.

A card runs machine code that was compiled for its architecture (``sm_80`` code runs on 8.x cards with x >= 0), or
portable code (``compute_90``) that the driver compiles on first use for any later card. A driver runs programs of
every CUDA version up to its own, and within one major version also later ones, as long as nothing has to be compiled
by the driver. Source: NVIDIA, "CUDA Compatibility" (minor version compatibility; its limits) and "CUDA C++ Programming
Guide" (binary and PTX compatibility).
"""

from __future__ import annotations

import re
from enum import Enum

from holdfast.model.finding import Finding, Level
from holdfast.model.record import record
from holdfast.model.units import format_count

# The first toolkit that compiles for an architecture. Source: NVIDIA, CUDA Toolkit release notes.
_FIRST_TOOLKIT = {
    (7, 0): (9, 0),
    (7, 5): (10, 0),
    (8, 0): (11, 0),
    (8, 6): (11, 1),
    (8, 7): (11, 4),
    (8, 9): (11, 8),
    (9, 0): (11, 8),
    (10, 0): (12, 8),
    (10, 3): (12, 9),
    (12, 0): (12, 8),
    (12, 1): (12, 9),
}


class BuildFit(str, Enum):
    """How a build's code meets a card."""

    NATIVE = "native"
    COMPILED_BY_DRIVER = "compiled_by_driver"
    NONE = "none"


@record
class FrameworkFacts:
    """What an interpreter's torch said of itself, asked in a process of its own. None is "not told".

    `cuda` is the version that torch was built for (``12.4``; None with `hip` None too: a build for the CPU),
    `architectures` its list (``sm_80``, ``compute_90``), `available` whether CUDA initialised, `devices` how many cards
    it saw, `capabilities` those of the cards (8, 0), `driver_cuda` the newest CUDA that the driver takes,
    `driver_error` what the driver said when it did not initialise, `words` what torch said about it.
    """

    version: str
    cuda: str | None = None
    hip: str | None = None
    architectures: tuple[str, ...] = ()
    available: bool | None = None
    devices: int | None = None
    capabilities: tuple[tuple[int, int], ...] = ()
    driver_cuda: tuple[int, int] | None = None
    driver_error: str = ""
    words: str = ""


def parse_cuda(text: str | None) -> tuple[int, int] | None:
    """Major and minor of a CUDA version such as ``12.4``; None when there is none."""
    match = re.match(r"(\d+)\.(\d+)", text or "", re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


def match_architectures(architectures: tuple[str, ...], capability: tuple[int, int]) -> BuildFit:
    """Whether a build with these architectures has code for a card of this capability.

    The suffix ``a`` binds code to exactly that architecture, ``f`` to its family (the same major version).
    """
    best = BuildFit.NONE
    for name in architectures:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name, re.ASCII)
        if match is None:
            continue
        built = (int(match[2]), int(match[3]))
        exact = match[4] == "a"
        same_major = built[0] == capability[0] and built[1] <= capability[1]
        if built == capability or (match[1] == "sm" and same_major and not exact):
            if match[1] == "sm":
                return BuildFit.NATIVE
            best = BuildFit.COMPILED_BY_DRIVER
        elif match[1] == "compute" and not match[4] and built <= capability:
            best = BuildFit.COMPILED_BY_DRIVER
    return best


def judge_framework(facts: FrameworkFacts, *, subject: str = "torch") -> tuple[Finding, ...]:
    """Findings about the three, worst case first decided: no CUDA build, driver too old, no code for the card.

    A driver whose CUDA is older than the build's within one major version is a warning as long as CUDA initialises:
    such pairs work, except where the driver would have to compile.
    """
    if facts.hip is not None:
        return (
            Finding("framework.fit", Level.UNKNOWN, subject, f"torch {facts.version} is built for ROCm {facts.hip}"),
        )
    build = parse_cuda(facts.cuda)
    if build is None:
        seen = f"torch {facts.version} is a build without CUDA: it would train on the CPU"
        remedy = "install the CUDA build of the same version from pytorch.org's index for this driver"
        return (Finding("framework.build", Level.FAIL, subject, seen, remedy),)
    driver = _judge_driver(facts, build, subject)
    return (*driver, *_judge_cards(facts, build, subject))


def _judge_driver(facts: FrameworkFacts, build: tuple[int, int], subject: str) -> tuple[Finding, ...]:
    newest = facts.driver_cuda
    if newest is None:
        seen = "the newest CUDA that the driver takes is not known" + (
            f": {facts.driver_error}" if facts.driver_error else ""
        )
        return (Finding("framework.driver", Level.UNKNOWN, subject, seen, "run nvidia-smi and read its first line"),)
    pair = f"the driver takes CUDA up to {newest[0]}.{newest[1]}, torch {facts.version} is built for {facts.cuda}"
    remedy = f"have the driver updated, or install a torch built for CUDA {newest[0]}.{newest[1]} or older"
    if build[0] > newest[0] or (build > newest and facts.available is False):
        return (Finding("framework.driver", Level.FAIL, subject, f"{pair}: the driver is too old", remedy),)
    if build > newest:
        seen = f"{pair}: works within CUDA {build[0]}, but not where the driver has to compile (PTX)"
        return (Finding("framework.driver", Level.WARN, subject, seen, remedy),)
    return (Finding("framework.driver", Level.PASS, subject, pair),)


def _judge_cards(facts: FrameworkFacts, build: tuple[int, int], subject: str) -> tuple[Finding, ...]:
    if not facts.capabilities or not facts.architectures:
        missing = "the cards' capability" if not facts.capabilities else "torch's list of architectures"
        seen = f"{missing} is not known: whether there is code for the cards cannot be told"
        return (Finding("framework.architecture", Level.UNKNOWN, subject, seen, "see the finding about CUDA"),)
    found = []
    for capability in sorted(set(facts.capabilities)):
        name = f"sm_{capability[0]}{capability[1]}"
        fit = match_architectures(facts.architectures, capability)
        listed = " ".join(facts.architectures)
        stale = facts.driver_cuda is not None and facts.driver_cuda < build
        if fit is BuildFit.NATIVE:
            found.append(Finding("framework.architecture", Level.PASS, subject, f"has code for {name}"))
        elif fit is BuildFit.COMPILED_BY_DRIVER and not stale:
            seen = f"has no code for {name} of its own ({listed}): the driver compiles it, which makes first steps slow"
            found.append(Finding("framework.architecture", Level.WARN, subject, seen, _name_build(capability)))
        else:
            why = "torch is the odd one" if fit is BuildFit.NONE else "and this driver is too old to compile it"
            seen = f"has no code for {name} ({listed}), {why}: it would end with `no kernel image is available`"
            found.append(Finding("framework.architecture", Level.FAIL, subject, seen, _name_build(capability)))
    return tuple(found)


def _name_build(capability: tuple[int, int]) -> str:
    first = _FIRST_TOOLKIT.get(capability)
    name = f"sm_{capability[0]}{capability[1]}"
    if first is None:
        return f"install a torch whose torch.cuda.get_arch_list() has {name}"
    return f"install a torch with {name} in its list (built for CUDA {first[0]}.{first[1]} or later)"


def judge_initialised(facts: FrameworkFacts, *, subject: str = "torch") -> Finding:
    """Whether the interpreter sees a card and CUDA initialises (PRE-09): no run is to fall to the CPU."""
    said = "; ".join(part for part in (facts.driver_error, facts.words) if part)
    if facts.available is None:
        return Finding("framework.cuda", Level.UNKNOWN, subject, f"CUDA was not asked: {said}", "see the finding above")
    if not facts.available or facts.devices == 0:
        seen = f"torch {facts.version} finds no card" + (f" ({said})" if said else "")
        remedy = "mend the driver, or start the container with its devices (--gpus all); nothing may fall to the CPU"
        return Finding("framework.cuda", Level.FAIL, subject, f"{seen}: the job would train on the CPU", remedy)
    number = "cards" if facts.devices is None else format_count(facts.devices, "card")
    return Finding("framework.cuda", Level.PASS, subject, f"torch {facts.version} sees {number}")
