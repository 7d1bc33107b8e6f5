"""Which runtime takes an image here, and why (``runtime: auto``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.core.container.references import APPTAINER_SCHEMES, ImageReference, read_reference
from holdfast.model.container import FOR_FILES, ContainerSpec, ResolvedImage, RuntimeName
from holdfast.model.record import replace

from .apptainer import Apptainer
from .docker import Docker
from .podman import Podman
from .runtime import RuntimeProblem, find_program

if TYPE_CHECKING:
    from .runtime import Runtime

FOR_NAMES = (RuntimeName.PODMAN, RuntimeName.DOCKER)
"""Podman first: its processes descend from our keeper, and it needs no daemon."""
PACKAGES = {RuntimeName.PODMAN: "podman", RuntimeName.DOCKER: "docker.io", RuntimeName.APPTAINER: "apptainer"}


def open_runtime(name: RuntimeName, program: str, environ: Mapping[str, str], room: str = "") -> Runtime:
    """The runtime behind a recorded program."""
    if name is RuntimeName.PODMAN:
        return Podman(program, environ, room)
    if name is RuntimeName.DOCKER:
        return Docker(program, environ)
    return Apptainer(name, program, environ)


def resolve_image(spec: ContainerSpec, environ: Mapping[str, str]) -> ResolvedImage:
    """The job's image in the first runtime that has it.

    Raises:
        RuntimeProblem: none can start it now; says of each why not, and what to do.
        ValueError: what is written is no image.
    """
    assert spec.image is not None
    image = read_reference(spec.image)
    wanted = _list_wanted(spec.runtime, image)
    problems: list[tuple[RuntimeName, RuntimeProblem]] = []
    absent: list[str] = []
    for name in wanted:
        program = find_program(name.value, environ)
        if program is None:
            absent.append(f"{name.value} is not on PATH")
            continue
        try:
            found = open_runtime(name, os.path.abspath(program), environ).resolve(image)
        except RuntimeProblem as error:
            problems.append((name, error))
            continue
        others = [*absent, *(f"{other.value} {error.why}" for other, error in problems)]
        asked = "asked for" if spec.runtime is not RuntimeName.AUTO else "the first that is here and has the image"
        return replace(found, why=f"{asked}" + (f" ({'; '.join(others)})" if others else ""))
    if not problems:
        named = " or ".join(name.value for name in wanted)
        package = PACKAGES.get(wanted[0], wanted[0].value)
        words, remedy = f"there is no {named} on PATH={environ.get('PATH', '')}", f"have {package} installed"
        if image.is_file and not os.path.exists(image.path):
            # The path may be mistyped, which a person mends before anybody installs anything.
            words = f"there is no file {image.path}, and {words.removeprefix('there is ')}"
            remedy = f"correct the path, or bring the image there; and {remedy}"
        raise RuntimeProblem(words, remedy)
    words = "; ".join([*(f"{name.value}: {error.why}" for name, error in problems), *absent])
    # What is merely missing is got by one command; that is worth more than a daemon that is down.
    name, best = min(problems, key=lambda pair: not pair[1].missing)
    del name
    raise RuntimeProblem(words, best.remedy, missing=best.missing)


def _list_wanted(runtime: RuntimeName, image: ImageReference) -> tuple[RuntimeName, ...]:
    if runtime is not RuntimeName.AUTO:
        return (runtime,)
    return FOR_FILES if image.is_file or image.scheme in APPTAINER_SCHEMES else FOR_NAMES
