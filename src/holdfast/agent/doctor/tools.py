"""The doctor's findings about tools: what diagnosis can read here, what root would add, and the network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.agent.checks.context import failed, passed, unknown, warned
from holdfast.agent.checks.environment import judge_clock, resolve_host
from holdfast.diagnosis.kernel.log import SOURCE, read_kernel_log
from holdfast.diagnosis.logs.rules import read_rules
from holdfast.host.clock import epoch_s
from holdfast.host.files.files import read_text_or_none
from holdfast.host.formats.packages import find_command
from holdfast.model.finding import Finding

if TYPE_CHECKING:
    from .host import HostFacts

TOOLS = (
    ("py-spy", "Python stacks of a live process without touching its code", "pip install py-spy"),
    ("gdb", "C stacks, and a way into a core file", "apt install gdb"),
    ("strace", "the system call in which a process hangs", "apt install strace"),
    ("perf", "where CPU time goes in native code", "apt install linux-perf"),
)
NAMES = ("pypi.org", "huggingface.co")
# Source: Documentation/admin-guide/LSM/Yama.rst.
_SCOPES = {
    "0": "processes of this account may be attached to",
    "1": "only children, and processes that allow it, may be attached to; holdfast's jobs allow it (ptrace: any)",
    "2": "only root may attach",
    "3": "nobody may attach until the next boot",
}


def check_tools(host: HostFacts) -> Iterator[Finding]:
    """Attach tools: each is optional, and each adds something to `holdfast diagnose --deep`."""
    for name, adds, install in TOOLS:
        path = find_command(name, host.environ, "/")
        if path is not None:
            yield passed("doctor.tool", name, f"{path}: {adds}")
        elif name == "py-spy":
            yield warned("doctor.tool", name, f"is not installed; it adds {adds}", install)
        else:
            yield passed("doctor.tool", name, f"is not installed; it would add {adds} ({install})")


def check_failure_rules(host: HostFacts) -> Iterator[Finding]:
    """The account's own failure rules load; a file that is refused is otherwise noticed only after a failure."""
    rules = read_rules(host.environ)
    if not rules.known:
        remedy = "mend the line that it names: holdfast's docs/failure-rules.md"
        yield failed("doctor.failure_rules", "failure rules", rules.unread, remedy)
    elif rules.value:
        seen = f"{len(rules.value)} of your own, beside the built-in ones"
        yield passed("doctor.failure_rules", "failure rules", seen)


def check_rights(host: HostFacts) -> Iterator[Finding]:
    """Attaching (Yama), the kernel's log, counters of other processes: what is closed to this account."""
    scope = read_text_or_none(f"{host.root}/proc/sys/kernel/yama/ptrace_scope")
    words = "no Yama: processes of this account may be attached to" if scope is None else _SCOPES.get(scope, scope)
    if os.geteuid() and scope in ("2", "3"):
        remedy = (
            "ask for kernel.yama.ptrace_scope=1; without it stacks come only from holdfast.training and faulthandler"
        )
        yield warned("doctor.ptrace", "attaching", words, remedy)
    else:
        yield passed("doctor.ptrace", "attaching", words)

    restricted = read_text_or_none(f"{host.root}/proc/sys/kernel/dmesg_restrict")
    log = read_kernel_log(source=f"{host.root}{SOURCE}")
    if log.known:
        yield passed("doctor.kernel_log", "kernel log", "readable: Xid errors and kills for want of memory are seen")
    else:
        seen = f"{log.unread} (dmesg_restrict={restricted or '?'}): Xid errors and the names of killed "
        remedy = "have this account added to group adm, or ask for kernel.dmesg_restrict=0; counters are used meanwhile"
        yield unknown("doctor.kernel_log", "kernel log", f"{seen}processes are not seen", remedy)
    pressure = os.path.exists(f"{host.root}/proc/pressure/memory")
    seen = "readable" if pressure else "not offered by this kernel (psi=1 on its command line)"
    yield passed("doctor.pressure", "memory pressure", seen)


def check_network(host: HostFacts) -> Iterator[Finding]:
    """The clock; name servers as configured; names are resolved only when that was asked for."""
    yield from judge_clock(epoch_s())
    text = read_text_or_none(f"{host.root}/etc/resolv.conf")
    servers = [
        line.split()[1] for line in (text or "").splitlines() if line.startswith("nameserver") and line.split()[1:]
    ]
    if servers:
        yield passed("doctor.resolver", "/etc/resolv.conf", f"name servers {', '.join(servers)}")
    else:
        yield unknown("doctor.resolver", "/etc/resolv.conf", "names no server", "holdfast doctor --network tries names")
    if host.network:
        for name in NAMES:
            host.tell(f"resolving {name}")
            yield resolve_host(name, host.environ)
