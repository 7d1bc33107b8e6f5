"""Podman: no daemon; the container's processes descend from our keeper through its monitor.

Without root it keeps one process for each account, which holds its user namespace ("pause"): it is made before and
outside of the run, and belongs to none. Source: podman(1), "Rootless mode"; podman-create(1).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from holdfast.core.container.references import ImageReference
from holdfast.model.container import ContainerRecord, ResolvedImage, RuntimeName
from holdfast.model.record import replace

from .oci import LIST_OURS, OciRuntime, read_found, read_pid_file
from .runtime import FoundContainer, RuntimeProblem, call, parse_json, shorten

INITS = ("/usr/libexec/podman/catatonit", "/usr/bin/catatonit", "/usr/local/libexec/podman/catatonit")
"""Source: containers-common, containers.conf(5), init_path and helper_binaries_dir."""
MAPPED = re.compile(r"^ *\d+ +\d+ +\d+$", re.MULTILINE)
"""A range of /proc/self/uid_map. Source: user_namespaces(7)."""
NUMBERS = "as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 ACCOUNT; then podman system migrate"
"""Source: podman(1), "Rootless mode"; any range that no other account has."""
PID_FILE = "init.pid"
RUNNING = {"running", "paused", "restarting", "stopping"}
"""States of a container in which somebody may be inside. Source: podman-ps(1), --filter status."""


class Podman(OciRuntime):
    """Podman, as root or without."""

    name = RuntimeName.PODMAN
    ps_more = " --external"

    def __init__(self, program: str, environ: Mapping[str, str], room: str = "") -> None:
        """`room` is a directory of the attempt into which the first process's pid is written."""
        super().__init__(program, environ)
        self.room = room

    @property
    def pid_file(self) -> str:
        """Where the pid of the first process is written."""
        return f"{self.room}/{PID_FILE}" if self.room else ""

    def resolve(self, image: ImageReference) -> ResolvedImage:
        """As `Runtime.resolve`."""
        rootless = os.geteuid() != 0
        if rootless:
            # Also makes the account's pause process, here and not among the job's.
            code, text = call([self.program, "unshare", "cat", "/proc/self/uid_map"], self.environ)
            if code != 0:
                raise RuntimeProblem(shorten(text), f"install uidmap; {NUMBERS}")
            if len(MAPPED.findall(text)) == 1:
                # It goes on with this account's number alone, and then keeps none inside.
                raise RuntimeProblem("has no numbers for this account in /etc/subuid and /etc/subgid", NUMBERS)
        found = super().resolve(image)
        own_group = not rootless or not os.path.isdir("/sys/fs/cgroup/memory")
        return replace(found, rootless=rootless, own_group=own_group, init=any(map(os.path.exists, INITS)))

    def find_init(self, container: ContainerRecord) -> int | None:
        """As `Runtime.find_init`; from the file that its monitor writes, without asking it."""
        return read_pid_file(self.pid_file) if self.room else super().find_init(container)

    def list_ours(self) -> tuple[FoundContainer, ...]:
        """As `Runtime.list_ours`; its templates have no labels by name in every version, its JSON has."""
        code, text = call([self.program, *LIST_OURS, "--format=json"], self.environ)
        listed = parse_json(text) if code == 0 else None
        if not isinstance(listed, list):
            raise RuntimeProblem(shorten(text), self.explain(text))
        found = (
            read_found(str(one.get("Id")), one.get("Labels") or {}, running=str(one.get("State")).lower() in RUNNING)
            for one in listed
        )
        return tuple(one for one in found if one is not None)
