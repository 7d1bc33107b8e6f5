"""Docker: a daemon is the parent of the container's processes; the id is what we have of them.

Nothing of the container descends from us or holds our lock. Its control group and its first process are looked up
before the command may run. Source: docker(1), docker-create(1), dockerd(8).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from holdfast.core.container.references import ImageReference
from holdfast.host.files import files
from holdfast.host.files.filesystems import read_mounts
from holdfast.model.container import ContainerRecord, ResolvedImage, RuntimeName
from holdfast.model.record import replace

from .oci import OciRuntime
from .recorded import is_first
from .runtime import RuntimeProblem, call_all, parse_json, shorten

GROUPS = ("docker/{id}", "system.slice/docker-{id}.scope")
"""Where the two cgroup drivers put a container when nobody says otherwise."""
TWO_NUMBERS = re.compile(r"^(\d+\.\d+)(?!\.?\d)")
"""A kernel's release without a third number, which Docker makes a 0. Source: moby, pkg/parsers/kernel, ParseRelease."""
LIMITS = {
    "memory": ("MemoryLimit",),
    "swap": ("MemoryLimit", "SwapLimit"),
    "cpus": ("CpuCfsPeriod", "CpuCfsQuota"),
    "cpu_weight": ("CPUShares",),
    "tasks": ("PidsLimit",),
}
"""What of ``docker info`` says whether the kernel can hold a limit. Source: moby, api/types/system/info.go."""
ELSEWHERE = "take this box's own daemon (unset DOCKER_HOST; docker context use default), or run holdfast where it is"


class Docker(OciRuntime):
    """Docker, through its client."""

    name = RuntimeName.DOCKER

    def resolve(self, image: ImageReference) -> ResolvedImage:
        """As `Runtime.resolve`."""
        asked = [[self.program, "info", "--format={{json .}}"], self.ask_image(image)]
        (_, info), about_image = call_all(asked, self.environ)
        facts = self._read_daemon(info)
        found = self.read_image(image, *about_image)
        options = " ".join(map(str, facts.get("SecurityOptions") or ()))
        return replace(
            found,
            rootless="rootless" in options,
            own_group=facts.get("CgroupDriver") != "none",
            init=_has_init(facts),
            version=str(facts.get("ServerVersion") or ""),
            unheld=tuple(name for name, said in LIMITS.items() if any(facts.get(one) is False for one in said)),
        )

    def _read_daemon(self, text: str) -> dict[str, Any]:
        facts = parse_json(text)
        if not isinstance(facts, dict) or not facts.get("ServerVersion"):
            errors = facts.get("ServerErrors") if isinstance(facts, dict) else None
            raise RuntimeProblem(shorten(" ".join(map(str, errors)) if errors else text), self.explain(text))
        _require_here(facts)
        return facts

    def explain(self, words: str) -> str:
        """As `OciRuntime.explain`."""
        low = words.lower()
        if "permission denied" in low:
            return "have this account added to the group docker, or take runtime: podman, which needs no daemon"
        if "cannot connect" in low or "is the docker daemon running" in low or "no such host" in low:
            return "start the daemon (systemctl start docker), or name its socket in DOCKER_HOST"
        return super().explain(words)

    def find_init(self, container: ContainerRecord) -> int | None:
        """As `Runtime.find_init`; from its control group in the usual place, without asking the daemon."""
        points = [mount.mount_point for mount in read_mounts() if mount.kind in ("cgroup", "cgroup2")]
        groups = (f"{point}/{form.format(id=container.id)}" for point in points for form in GROUPS)
        return next((pid for group in groups if (pid := _find_first(group)) is not None), None)

    def ask_init(self, container: ContainerRecord) -> int | None:
        """The same by the daemon's own word: slower, and right wherever it put the container, also on another box."""
        return super().find_init(container)


def adds_proxies(environ: Mapping[str, str]) -> bool:
    """Whether the client puts proxies of its own configuration into every container. Source: docker(1), config.json."""
    place = environ.get("DOCKER_CONFIG") or f"{environ.get('HOME') or os.path.expanduser('~')}/.docker"
    facts = parse_json(files.read_text_or_none(f"{place}/config.json") or "")
    return isinstance(facts, dict) and bool(facts.get("proxies"))


def _has_init(facts: dict[str, Any]) -> bool:
    """Whether the daemon has an init program: it names one that is not there, too, with a commit of "N/A".

    The commit is empty for one that is there and does not tell it (Debian's tini). Source: moby, daemon/info_unix.go.
    """
    commit = facts.get("InitCommit")
    return bool(facts.get("InitBinary")) and not (isinstance(commit, dict) and commit.get("ID") == "N/A")


def _require_here(facts: dict[str, Any]) -> None:
    """Refuse a daemon that is on another machine, or in a VM on this one: cards, paths and processes are not its own.

    Another kernel proves that; the same one proves nothing, and its first process is looked at when it runs.

    Raises:
        RuntimeProblem: it is elsewhere.
    """
    theirs, here, system = str(facts.get("KernelVersion") or ""), os.uname().release, str(facts.get("OperatingSystem"))
    if theirs in ("", "<unknown>", here, TWO_NUMBERS.sub(r"\1.0", here)) and "Docker Desktop" not in system:
        return
    why = f"answers from another machine or a VM: {system}, kernel {theirs}; this box has kernel {here}"
    raise RuntimeProblem(why, ELSEWHERE)


def _find_first(group: str) -> int | None:
    """The process of a control group that is number 1 in its PID namespace."""
    try:
        with open(f"{group}/cgroup.procs", encoding="ascii") as file:
            pids = [int(line) for line in file]
    except (OSError, ValueError):
        return None
    return next((pid for pid in pids if is_first(pid)), None)
