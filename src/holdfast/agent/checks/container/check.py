"""Checks of the container (PRE-04, PRE-17, CTR-07): that its image is here and pinned, and what goes in may go in.

Everything is asked of the runtime that would start it, now, with a deadline; nothing is fetched and nothing started.
What was found is committed for the start: between the two a tag may be moved.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from holdfast.agent.checks.context import CheckContext, failed, passed, warned
from holdfast.core.container.command import HOST_NETWORK, NO_NETWORK, find_unbindable
from holdfast.core.container.references import ImageReference, is_card_device, read_bind, read_reference
from holdfast.host.contain.limits import plan_limits
from holdfast.host.container.choose import resolve_image
from holdfast.host.container.members import foresee_group
from holdfast.host.container.runtime import RuntimeProblem
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.container import FOR_FILES, ContainerSpec, ContainerUser, EntryPoint, ResolvedImage, RuntimeName
from holdfast.model.finding import Finding

OF_CARDS = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
NETWORK = r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}"


def check_container(situation: CheckContext) -> Iterator[Finding]:
    """The whole of `container`."""
    spec = situation.spec.container
    assert spec.image is not None
    if situation.spec.login_shell:
        seen = "a login shell of the image would read files that may change the cards and the environment"
        yield failed("container.login_shell", "login_shell", seen, "leave login_shell out, or the image")
    if not re.fullmatch(NETWORK, spec.network, re.ASCII):
        yield failed("container.network", spec.network[:80], "is no network's name", "host, none, or a name")
    yield from _check_environment(situation)
    for text in spec.binds:
        yield from _check_bind(situation, text)
    yield from _check_own(situation)
    yield from _check_image(situation, spec.image)


def _check_environment(situation: CheckContext) -> Iterator[Finding]:
    stated = sorted(name for name in OF_CARDS if name in situation.spec.env or name in situation.spec.container.env)
    if stated:
        seen = f"{', '.join(stated)} would choose other cards than the lease"
        yield failed("container.cards", "env", seen, "take it out of `env`, and choose cards with `gpus`")
    absent = sorted(name for name in situation.spec.container.env if name not in situation.environ)
    if absent:
        seen = f"not set here: {', '.join(absent)}"
        yield warned("container.env", "container.env", seen, "export them before `holdfast run`, or take them out")


def _check_bind(situation: CheckContext, text: str) -> Iterator[Finding]:
    try:
        bind = read_bind(text)
    except ValueError as error:
        yield failed("container.binds", text[:200], str(error), "SOURCE[:TARGET[:ro|rw]]")
        return
    if is_card_device(bind.source) or is_card_device(os.path.realpath(bind.source)):
        seen = "holds devices of cards that are not leased"
        yield failed("container.cards", bind.source, seen, "take it out: `gpus` puts the leased cards in")
    elif not os.path.exists(bind.source):
        seen = "is not on this box; a runtime would make an empty directory of it, or refuse"
        yield failed("container.binds", bind.source, seen, "correct `container.binds`, or mount it")
    elif bind.writable and (of := _find_data(situation, bind.source)) is not None:
        seen = f"would be writable inside, and {of} is declared as data, which no job writes to"
        yield failed("container.data", bind.source, seen, "leave :rw out, or take it out of `data`")
    else:
        how = "writable" if bind.writable else "read-only"
        yield passed("container.binds", bind.source, f"is there; {bind.target} inside, {how}")


def _check_own(situation: CheckContext) -> Iterator[Finding]:
    """What the job declares and is inside at its own path, as what is bound by name."""
    spec = situation.spec
    for path in (situation.in_workdir(each) for each in (*spec.data, *spec.inputs)):
        if is_card_device(path) or is_card_device(os.path.realpath(path)):
            seen = "holds devices of cards that are not leased"
            yield failed("container.cards", path, seen, "take it out: `gpus` puts the leased cards in")
    for path in (situation.in_workdir(each) for each in (spec.caches, spec.checkpoints.mirror) if each):
        if (of := _find_data(situation, path)) is not None:
            seen = f"is written to, and {of} is declared as data, which no job writes to"
            yield failed("container.data", path, seen, "have it elsewhere, or take that out of `data`")


def _find_data(situation: CheckContext, source: str) -> str | None:
    real = os.path.realpath(source)
    for path in situation.spec.data:
        data = os.path.realpath(situation.in_workdir(path))
        if data == real or data.startswith(f"{real}/") or real.startswith(f"{data}/"):
            return path
    return None


def _check_image(situation: CheckContext, text: str) -> Iterator[Finding]:
    spec = situation.spec.container
    try:
        image = read_reference(text)
        resolved = resolve_image(spec, situation.environ)
    except ValueError as error:
        yield failed("image", text[:200], str(error), "NAME@sha256:..., or the path of a SIF file")
        return
    except RuntimeProblem as error:
        # What is fetched under a moving tag would be refused next.
        more = ", then name it by its digest, or take it as it is: --moving-tag"
        remedy = f"{error.remedy}{more}" if error.missing and image.is_moving and not spec.moving_tag else error.remedy
        yield failed("image", text[:200], error.why, remedy)
        return
    if image.is_moving and not spec.moving_tag:
        seen = f"is a moving tag: the same words may be another image tomorrow; now it is {resolved.digest}"
        remedy = f"write it down: image: {_pin(image, resolved)}; or take it as it is: moving_tag: true (--moving-tag)"
        yield failed("image.tag", text, seen, remedy)
        return
    if paths := find_unbindable(resolved.runtime, _list_paths(situation)):
        seen = f"{resolved.runtime.value} takes no path with a comma or a colon"
        yield failed("container.paths", paths[0][:200], seen, "rename it, or take podman or docker")
        return
    if resolved.runtime in FOR_FILES and (unheeded := list(_list_unheeded(spec, resolved.runtime.value))):
        yield from unheeded
        return
    if situation.image_record:
        files.commit(situation.image_record, wire.to_bytes(resolved))
    yield passed("image", text, f"{resolved.digest} in {resolved.runtime.value}: {resolved.why}")
    if image.is_moving:
        yield warned("image.tag", text, f"a moving tag, now {resolved.digest}", f"image: {_pin(image, resolved)}")
    yield from _warn(situation, resolved)


def _list_unheeded(spec: ContainerSpec, name: str) -> Iterator[Finding]:
    """What Apptainer and Singularity have no way to do for an account without root."""
    if spec.network not in (HOST_NETWORK, NO_NETWORK):
        seen = f"{name} gives an account without root no network by name"
        yield failed("container.network", spec.network, seen, "network: host or none; or podman, docker")
    if spec.user is ContainerUser.IMAGE:
        seen = f"{name} runs everything as your own account"
        yield failed("container.user", spec.user.value, seen, "leave `user` out; or take podman or docker")
    if spec.entrypoint is EntryPoint.KEEP:
        seen = f"{name} has an image's entry point as a script of its own, which gets no command"
        yield failed("container.entrypoint", spec.entrypoint.value, seen, "write its program before the command")


def _list_paths(situation: CheckContext) -> Iterator[str]:
    """What will be bound, as far as the job names it; each is inside at its own path."""
    spec = situation.spec
    for text in spec.container.binds:
        with contextlib.suppress(ValueError):
            bind = read_bind(text)
            yield from (bind.source, bind.target)
    named = (spec.config, spec.checkpoints.mirror, spec.caches, *spec.inputs, *spec.data)
    yield from (situation.in_workdir(path) for path in named if path is not None)
    yield from (spec.workdir, situation.runs_place)


def _pin(image: ImageReference, resolved: ResolvedImage) -> str:
    """The same image in words that stay true: by its digest where a registry knows it, else by its own id."""
    known = resolved.digest.removeprefix("sha256:") != resolved.reference
    return f"{image.name}@{resolved.digest}" if known else f"sha256:{resolved.reference}"


def _warn(situation: CheckContext, resolved: ResolvedImage) -> Iterator[Finding]:
    spec = situation.spec.container
    name = resolved.runtime.value
    if spec.init and not resolved.init:
        seen = f"{name} has no init program here; the image's Python takes its place, and without one nothing reaps"
        package = "catatonit" if resolved.runtime is RuntimeName.PODMAN else "tini"
        yield warned("container.init", name, seen, f"install {package}, or container: {{init: false}}")
    if resolved.own_group:
        for limit in plan_limits(situation.spec.limits, foresee_group(resolved)).limits:
            if limit.name in resolved.unheld:
                seen = f"{limit.asked}: held by {limit.mechanism.value}, not by the container: {limit.detail}"
                remedy = "have the box's kernel account for it, or leave the limit out"
                yield warned("container.limits", f"limits.{limit.name}", seen, remedy)
    if spec.user is ContainerUser.IMAGE:
        user = resolved.user or "root"
        seen = f"the image's user ({user}) may be unable to write to the run directory, or leave files of root there"
        yield warned(
            "container.user",
            resolved.user or "root",
            seen,
            "--container-user host (in a job file container: {user: host})",
        )
    if spec.shm_bytes is not None and resolved.runtime in FOR_FILES:
        seen = f"{name} makes a /dev/shm of its own size: half of the memory, whatever shm says"
        yield warned("container.shm", name, seen, "leave `shm` out; or take podman or docker")
    if situation.spec.gpus.wanted and resolved.runtime in FOR_FILES:
        seen = f"{name} puts all cards of the box in; that the job takes the leased ones rests on a variable"
        yield warned("container.cards", name, seen, "runtime: podman or docker gives exactly the leased ones")
