"""Apptainer and its elder, Singularity: the image is a file and the job our own descendant; nothing is left to remove.

Written from the documentation: neither is in a registry that this project's tests can reach, so its command line is
tested by record and by a stand-in (docs/containers.md). Source: apptainer-exec(1).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.core.container.command import ContainerPlan
from holdfast.core.container.references import ImageReference
from holdfast.model.container import ContainerRecord, ResolvedImage, RuntimeName

from .runtime import FoundContainer, RuntimeProblem


class Apptainer:
    """Apptainer or Singularity."""

    warned = ""

    def __init__(self, name: RuntimeName, program: str, environ: Mapping[str, str]) -> None:
        """`environ` is the caller's."""
        self.name, self.program, self.environ = name, program, environ

    def resolve(self, image: ImageReference) -> ResolvedImage:
        """As `Runtime.resolve`; a file is the image, anything else would be fetched and built at the start."""
        if not image.is_file:
            raise RuntimeProblem("would fetch this image at each start", self.describe_pull(image), missing=True)
        try:
            if not os.path.isdir(image.path):
                os.close(os.open(image.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except FileNotFoundError:
            raise RuntimeProblem(f"has no image {image.path}", self.describe_pull(image), missing=True) from None
        except OSError as error:
            raise RuntimeProblem(f"cannot read {image.path}: {error.strerror}", f"chmod a+r {image.path}") from None
        facts = os.stat(image.path)
        return ResolvedImage(
            runtime=self.name,
            program=self.program,
            image=image.text,
            reference=image.path,
            # Not its hash: that takes half a minute for ten gigabytes. What tells versions apart is recorded.
            digest=f"file:{facts.st_size}:{facts.st_mtime_ns}",
            rootless=os.geteuid() != 0,
            own_group=False,
        )

    def describe_pull(self, image: ImageReference) -> str:
        """As `Runtime.describe_pull`."""
        if image.is_file:
            return f"{self.name.value} pull {image.path} docker://NAME@sha256:..."
        leaf = image.name.rpartition("/")[2].rpartition(":")[2] or "image"
        if image.is_of_box:
            here = f"bring it from where it is: podman save --output {leaf}.tar {image.name}"
            return f"{here}; then {self.name.value} build {leaf}.sif docker-archive:{leaf}.tar, and image: {leaf}.sif"
        source = image.text if "://" in image.text else f"docker://{image.text}"
        return f"{self.name.value} pull {leaf}.sif {source}, then image: {leaf}.sif"

    def create(self, plan: ContainerPlan, environ: Mapping[str, str]) -> str:
        """There is nothing to create: the run's processes are the container."""
        del environ
        return plan.name

    def find_init(self, container: ContainerRecord) -> int | None:
        """Its processes are our descendants, and need no naming."""
        del container
        return None

    def signal(self, container: str, number: int) -> None:
        """Never asked: all of its processes are ours to signal."""
        raise RuntimeProblem(f"has no container {container} to signal ({number})")

    def unpause(self, container: str) -> None:
        """Never asked: it has no such thing."""
        raise RuntimeProblem(f"has no container {container} to unpause")

    def was_out_of_memory(self, container: str) -> bool:
        """Told by the run's own control group."""
        del container
        return False

    def find_own(self, container: str, run_id: str, run_dir: str) -> str:
        """There is none but while it runs."""
        del container, run_id, run_dir
        return ""

    def remove(self, container: str) -> None:
        """Nothing is left of one that has ended."""

    def list_ours(self) -> tuple[FoundContainer, ...]:
        """None outlives its run."""
        return ()
