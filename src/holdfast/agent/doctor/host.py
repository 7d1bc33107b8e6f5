"""The doctor's findings about the box: program, limits, containment, login, the lease area."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping

from holdfast import __version__
from holdfast.agent.checks import box, clock
from holdfast.agent.checks.context import CheckContext, failed, passed, unknown, warned
from holdfast.core.rules.rules import Rules
from holdfast.host.contain.containment import probe_levels
from holdfast.host.contain.tree import find_cgroups
from holdfast.host.gpu.quarantine import list_quarantined
from holdfast.host.lease.area import find_second_areas, open_area
from holdfast.model.errors import HoldfastError
from holdfast.model.finding import Finding, Level
from holdfast.model.gpu import GpuRequest, Inventory
from holdfast.model.job import JobSpec, Limits, UnenforcedPolicy
from holdfast.model.record import record, replace

ENOUGH_OPEN_FILES = 4096


@record(frozen=False)
class HostFacts:
    """What the sections are given.

    `python` is the interpreter to ask about torch, None for the one on PATH. `roots` are where runs are. `network`
    allows questions that leave this box. `tell` says what takes long. `root` is put in front of system paths, for
    tests. `inventory` is filled by the section about cards, for those after it.
    """

    environ: Mapping[str, str]
    rules: Rules
    roots: tuple[str, ...]
    python: str | None = None
    network: bool = False
    tell: Callable[[str], None] = lambda _: None
    root: str = ""
    inventory: Inventory | None = None

    @property
    def has_cards(self) -> bool:
        """Whether anything says that there are cards here, readable or not."""
        return bool(self.inventory and self.inventory.cards) or os.path.exists(f"{self.root}/dev/nvidiactl")

    def situation(self) -> CheckContext:
        """A job like those that run here, for the checks of preflight; its limits are asked for to see what holds."""
        limits = Limits(memory_bytes=1 << 30, cpus=1.0, tasks=1000, unenforced=UnenforcedPolicy.WARN)
        cards = GpuRequest(count=1 if self.has_cards else 0)
        spec = JobSpec("doctor", ("true",), "/", gpus=cards, limits=limits)
        return CheckContext(spec, self.rules, self.environ, inventory=self.inventory, root=self.root)


def check_program(host: HostFacts) -> Iterator[Finding]:
    """Versions of what looks."""
    del host
    words = ".".join(map(str, sys.version_info[:3]))
    yield passed("doctor.program", "holdfast", f"{__version__}, on Python {words} ({sys.executable})")
    facts = os.uname()
    yield passed("doctor.system", facts.nodename, f"{facts.sysname} {facts.release} {facts.machine}")


def check_limits(host: HostFacts) -> Iterator[Finding]:
    """Inherited limits, memory, shared memory."""
    situation = host.situation()
    yield from box.check_process_limits(situation)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and box.FEW_OPEN_FILES <= soft < ENOUGH_OPEN_FILES:
        seen = f"{soft} open files are allowed (ulimit -n), up to {hard}: many loader workers reach that"
        more = f"--limit-open-files {ENOUGH_OPEN_FILES} (in a job file limits: {{open_files: {ENOUGH_OPEN_FILES}}})"
        yield warned("doctor.open_files", "RLIMIT_NOFILE", seen, more)
    core = resource.getrlimit(resource.RLIMIT_CORE)[0]
    seen = "no core file is written at a crash" if core == 0 else "a crash may write a core file"
    yield passed("doctor.core", "RLIMIT_CORE", f"{seen} (ulimit -c; ulimit -c unlimited to look into a crash with gdb)")
    yield from box.check_memory(situation)
    yield from box.check_shared_memory(situation)


def check_containment(host: HostFacts) -> Iterator[Finding]:
    """How well runs are held together here, and which limits something can hold."""
    yield passed("doctor.cgroups", "control groups", find_cgroups().describe())
    for finding in box.check_containment(host.situation()):
        alone = finding.evidence == finding.subject
        yield replace(finding, evidence="works here, and holds runs together") if alone else finding
    for probed in probe_levels():
        if not probed.works:
            seen = f"does not work here: {probed.refusal}"
            yield passed("doctor.isolation", probed.level.value, seen)
    for finding in box.check_limits(host.situation()):
        if finding.level is Level.WARN:
            remedy = "have a control group delegated to this account (systemd: Delegate=yes), or do without this limit"
            yield Finding("doctor.limits", Level.WARN, finding.subject, finding.evidence, remedy)
        else:
            # The value was only asked for to see what holds it.
            _, held, by = finding.evidence.partition("held by ")
            seen = f"can be {held}{by}" if held else finding.evidence
            yield Finding("doctor.limits", finding.level, finding.subject, seen, finding.remedy)


def check_login(host: HostFacts) -> Iterator[Finding]:
    """Whether a logout ends runs."""
    yield from clock.check_login(host.situation())
    if host.environ.get("SSH_CONNECTION") and not host.environ.get("TMUX") and not host.environ.get("STY"):
        seen = (
            "this is an ssh session: what is started without holdfast ends when it hangs up (torchrun even with nohup)"
        )
        yield passed("doctor.hang_up", "ssh", f"{seen}; `holdfast run` starts in a session of its own")


def check_leases(host: HostFacts) -> Iterator[Finding]:
    """The place where runs of all accounts agree on cards, and who has set cards aside."""
    try:
        area = open_area(host.rules.lease_dir, environ=host.environ, create=False)
    except HoldfastError as error:
        yield failed("doctor.leases", "lease area", str(error), error.hint or "see holdfast's docs/leases.md")
        return
    for text in area.warnings:
        yield warned("doctor.leases", "lease area", text, "see holdfast's docs/leases.md")
    for other in find_second_areas(area, host.rules.lease_dir):
        seen = f"{other} is in use too: who leases there and who leases in {area.candidates[0]} do not see each other"
        yield failed(
            "doctor.lease_areas", area.found, seen, "name one place in the rules file; unset HOLDFAST_LEASE_DIR"
        )
    if not area.directories:
        yield passed(
            "doctor.leases", "lease area", f"none yet; the first lease makes one ({', '.join(area.candidates)})"
        )
        return
    yield passed("doctor.leases", "lease area", f"{', '.join(area.directories)} ({area.found})")
    yield from _check_quarantine(host)


def _check_quarantine(host: HostFacts) -> Iterator[Finding]:
    del host
    try:
        records = list_quarantined()
    except HoldfastError as error:
        yield unknown("doctor.quarantine", "cards set aside", str(error), error.hint or "see holdfast's docs/gpus.md")
        return
    for kept in records:
        binds = "" if kept.binding else " (does not bind this account)"
        seen = f"set aside by {kept.user} at {kept.at}: {kept.reason}{binds}"
        remedy = f"when it is well again: holdfast gpus clear {kept.uuid}"
        yield warned("doctor.quarantine", kept.uuid, seen, remedy)
