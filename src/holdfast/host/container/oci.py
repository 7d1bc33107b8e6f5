"""What Podman and Docker have in common: one set of verbs, labels, and answers in JSON."""

from __future__ import annotations

import contextlib
import os
import signal as signals
from collections.abc import Mapping
from typing import Any

from holdfast.core.container.command import ContainerPlan, build_create_command, build_env_file, split_plan
from holdfast.core.container.references import REGISTRY, ImageReference
from holdfast.host.clock import monotonic_s
from holdfast.model.container import (
    LABEL_ATTEMPT,
    LABEL_DIRECTORY,
    LABEL_RUN,
    ContainerRecord,
    ResolvedImage,
    RuntimeName,
)
from holdfast.model.record import replace

from .recorded import ID, is_first
from .runtime import ASK_S, CREATE_S, FoundContainer, RuntimeProblem, call, parse_json, shorten

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64", "ppc64le": "ppc64le", "s390x": "s390x"}
ABSENT = ("no such container", "no container with name or id", "no such object")
MEMORY_WITHIN_S = 5.0
"""A run's end waits for it."""
LABELS = (LABEL_RUN, LABEL_ATTEMPT, LABEL_DIRECTORY)
LIST_OURS = ("ps", "--all", "--no-trunc", f"--filter=label={LABEL_RUN}")
LIVES = ("Up", "Restarting", "Paused")
TAKEN = ("is already in use", "already in use by")
MISSING = ("no such image", "image not known", "unable to find image", "failed to find image")


class OciRuntime:
    """Podman or Docker, by command line."""

    name = RuntimeName.AUTO
    ps_more = ""
    """What else `ps` has to be told to list what was made half."""

    def __init__(self, program: str, environ: Mapping[str, str]) -> None:
        """`environ` is the caller's: sockets, contexts and stores are named there."""
        self.program, self.environ = program, environ
        self.warned = ""

    # --- images --------------------------------------------------------------------------------------------------

    def resolve(self, image: ImageReference) -> ResolvedImage:
        """As `Runtime.resolve`."""
        return self.read_image(image, *call(self.ask_image(image), self.environ))

    def ask_image(self, image: ImageReference) -> list[str]:
        """The command by which an image is looked up."""
        return [self.program, "image", "inspect", image.text.removeprefix(REGISTRY)]

    def read_image(self, image: ImageReference, code: int, text: str) -> ResolvedImage:
        """The image in the answer to `ask_image`.

        Raises:
            RuntimeProblem: as `Runtime.resolve`.
        """
        found = parse_json(text) if code == 0 else None
        if not isinstance(found, list) or not found or not isinstance(found[0], dict):
            if any(words in text.lower() for words in MISSING):
                raise RuntimeProblem("does not have this image", self.describe_pull(image), missing=True)
            raise RuntimeProblem(shorten(text), self.explain(text))
        facts = found[0]
        machine = os.uname().machine
        here = ARCHITECTURES.get(machine, machine)
        theirs = str(facts.get("Architecture") or here)
        if theirs != here:
            pull = f"{self.name.value} pull --platform linux/{here} {_leave_digest(image)}"
            words = f"has this image for {theirs}, and this box is {here}"
            raise RuntimeProblem(words, f"{pull}, and name it by the digest of that one")
        config = facts.get("Config") or {}
        identity = str(facts.get("Id") or "").removeprefix("sha256:")
        return ResolvedImage(
            runtime=self.name,
            program=self.program,
            image=image.text,
            # By its own id: between now and the start a tag may be moved.
            reference=identity,
            digest=image.digest or _read_digest(facts, image) or f"sha256:{identity}",
            entrypoint=tuple(map(str, config.get("Entrypoint") or ())),
            environment=dict(entry.partition("=")[::2] for entry in config.get("Env") or ()),
            user=str(config.get("User") or ""),
        )

    def describe_pull(self, image: ImageReference) -> str:
        """As `Runtime.describe_pull`."""
        name = image.text.removeprefix(REGISTRY)
        if image.is_of_box:
            runtime = self.name.value
            brought = f"bring it from where it is: {runtime} save {name} | ssh BOX {runtime} load"
            # What is saved by its digest is loaded without its name, and may get another digest.
            by_digest = image.digest and image.name.startswith("localhost/")
            named = ", and name it sha256:ID as load says" if by_digest else ""
            return f"{brought}{named}; or build it on the box"
        return f"{self.name.value} pull {name}"

    def explain(self, words: str) -> str:
        """What to do about what the runtime said."""
        if "no space left" in words.lower():
            return f"its image store is full: {self.name.value} system df, then {self.name.value} image prune"
        if "network" in words.lower() and "not found" in words.lower():
            return f"take one that is there, host or none: {self.name.value} network ls"
        return f"{self.name.value} info says more"

    # --- containers ----------------------------------------------------------------------------------------------

    def create(self, plan: ContainerPlan, environ: Mapping[str, str]) -> str:
        """As `Runtime.create`."""
        argv = [self.program, *build_create_command(plan)]
        by_name, by_file, kept_out = split_plan(plan)
        environ = {name: value for name, value in environ.items() if name not in kept_out}
        given, end = build_env_file(by_file), monotonic_s() + CREATE_S
        for _ in range(2):
            left_s = max(1.0, round(end - monotonic_s(), 1))
            code, text = call(argv, {**environ, **by_name}, within_s=left_s, given=given)
            container = text.strip().splitlines()[-1].strip() if code == 0 and text.strip() else ""
            if len(container) == 64:
                beside = text.strip().rpartition("\n")[0]
                self.warned = shorten(beside) if beside.strip() else ""
                return container
            if not any(words in text.lower() for words in TAKEN):
                break
            if remedy := self._clear_name(plan):
                raise RuntimeProblem(shorten(text), remedy)
        raise RuntimeProblem(shorten(text), self.explain(text))

    def _clear_name(self, plan: ContainerPlan) -> str:
        """Remove a container of our name that an earlier start of this very attempt left and nobody runs in.

        Where it is another one: whose it is and who removes it.
        """
        facts = self._inspect(plan.name)
        if not facts:
            return f"see whose it is: {self.name.value} ps --all{self.ps_more} --filter name={plan.name}"
        if not _is_of(facts, plan.run_id, plan.run_dir):
            labels = _read_labels(facts)
            if not labels.get(LABEL_RUN):
                return f"it is none of holdfast: whoever made {plan.name} removes it, or gives it another name"
            return (
                f"it is the container of {labels[LABEL_RUN]} in {labels.get(LABEL_DIRECTORY)}, and that run's to remove"
            )
        if (facts.get("State") or {}).get("Running"):
            return "an earlier start of this attempt still runs in it: holdfast reconcile"
        self.remove(str(facts.get("Id") or plan.name))
        return ""

    def _inspect(self, container: str, within_s: float = ASK_S) -> dict[str, Any]:
        """What the runtime knows of a container; empty where there is none.

        Raises:
            RuntimeProblem: it does not say.
        """
        code, text = call([self.program, "container", "inspect", container], self.environ, within_s=within_s)
        if code != 0 and not any(words in text.lower() for words in ABSENT):
            raise RuntimeProblem(shorten(text), self.explain(text))
        found = parse_json(text) if code == 0 else None
        return found[0] if isinstance(found, list) and found and isinstance(found[0], dict) else {}

    def find_own(self, container: str, run_id: str, run_dir: str) -> str:
        """As `Runtime.find_own`."""
        facts = self._inspect(container)
        if _is_of(facts, run_id, run_dir):
            return str(facts.get("Id") or "")
        if facts and ID.fullmatch(container) is not None:
            labels = _read_labels(facts)
            why = f"its labels name {labels.get(LABEL_RUN)} in {labels.get(LABEL_DIRECTORY)}"
            raise RuntimeProblem(why, f"{self.name.value} rm --force {container}, if that is this run all the same")
        return ""

    def find_init(self, container: ContainerRecord) -> int | None:
        """As `Runtime.find_init`."""
        state = self._inspect(container.id).get("State") or {}
        pid = state.get("Pid") if isinstance(state, dict) else None
        return pid if isinstance(pid, int) and pid > 0 else None

    def signal(self, container: str, number: int) -> None:
        """As `Runtime.signal`."""
        self._tell("kill", f"--signal={signals.Signals(number).name}", container)

    def unpause(self, container: str) -> None:
        """As `Runtime.unpause`."""
        self._tell("unpause", container)

    def _tell(self, *words: str) -> None:
        code, text = call([self.program, *words], self.environ)
        if code != 0:
            raise RuntimeProblem(shorten(text), self.explain(text))

    def was_out_of_memory(self, container: str) -> bool:
        """As `Runtime.was_out_of_memory`."""
        return (self._inspect(container, MEMORY_WITHIN_S).get("State") or {}).get("OOMKilled") is True

    def remove(self, container: str) -> None:
        """As `Runtime.remove`."""
        code, text = call([self.program, "rm", "--force", "--volumes", container], self.environ, within_s=2 * ASK_S)
        if code != 0 and not any(words in text.lower() for words in ABSENT):
            raise RuntimeProblem(shorten(text), f"{self.name.value} rm --force {container}")

    def list_ours(self) -> tuple[FoundContainer, ...]:
        """As `Runtime.list_ours`."""
        form = "\t".join(("{{.ID}}", "{{.Status}}", *(f'{{{{.Label "{label}"}}}}' for label in LABELS)))
        code, text = call([self.program, *LIST_OURS, f"--format={form}"], self.environ)
        if code != 0:
            raise RuntimeProblem(shorten(text), self.explain(text))
        rows = (line.split("\t") for line in text.splitlines())
        found = (
            read_found(row[0], dict(zip(LABELS, row[2:], strict=False)), running=row[1].startswith(LIVES))
            for row in rows
            if len(row) == 2 + len(LABELS)
        )
        return tuple(one for one in found if one is not None)


def _read_labels(facts: Mapping[str, Any]) -> Mapping[str, str]:
    """The labels of an inspected container."""
    return (facts.get("Config") or {}).get("Labels") or {}


def _is_of(facts: Mapping[str, Any], run_id: str, run_dir: str) -> bool:
    """Whether the labels of an inspected container name this run; its directory may be known by another path now."""
    labels = _read_labels(facts)
    found = labels.get(LABEL_DIRECTORY) or ""
    if labels.get(LABEL_RUN) != run_id or not os.path.isabs(found):
        return False
    if os.path.realpath(found) == os.path.realpath(run_dir):
        return True
    with contextlib.suppress(OSError):
        return os.path.samefile(found, run_dir)
    return False


def _leave_digest(image: ImageReference) -> str:
    """An image without its digest, which names the one for another machine."""
    return f"{image.name}:{image.tag}" if image.tag else image.name


def _read_digest(facts: Mapping[str, object], image: ImageReference) -> str:
    """The digest of the manifest where the runtime knows one; of the image's own repository, as each has its own."""
    direct = facts.get("Digest")
    if isinstance(direct, str) and direct.startswith("sha256:"):
        return direct
    listed = facts.get("RepoDigests")
    for entry in map(str, listed) if isinstance(listed, list) else ():
        name, _, digest = entry.partition("@")
        if replace(image, name=name).repository == image.repository:
            return digest
    return ""


def read_found(container: str, labels: Mapping[str, str], *, running: bool) -> FoundContainer | None:
    """A container that carries our labels; None where they, or its id, are not ours."""
    run_id, attempt, run_dir = (str(labels.get(label, "")) for label in LABELS)
    if len(container) != 64 or not run_id or not attempt.isdecimal():
        return None
    return FoundContainer(container, run_id, int(attempt), run_dir, running)


def read_pid_file(path: str) -> int | None:
    """The pid in a file that a runtime writes; None while it is not there, or names no container's first process.

    The file is old, or written by somebody inside, where it names another one.
    """
    try:
        with open(path, encoding="ascii") as file:
            text = file.read(32).strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isdigit() and is_first(int(text)) else None
