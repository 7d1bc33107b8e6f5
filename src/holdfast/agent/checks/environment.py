"""Checks of the environment: secrets, allocator, tracker, threads, what the user set otherwise (RAIL-03, RAIL-11)."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping

from holdfast.agent.messages.reach import look_at_ways
from holdfast.agent.plan.cores import count_job_cores
from holdfast.core.job.environment import (
    ALLOCATOR_NEW,
    ALLOCATOR_OLD,
    LaunchContext,
    build_environment,
    correct_allocator,
)
from holdfast.core.job.limits import cap_threads
from holdfast.core.job.secret_names import read_uses
from holdfast.host.files.secret_files import SecretUnusableError, read_variables
from holdfast.host.formats.packages import find_torch
from holdfast.host.process.libc import is_clock_synchronised
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model.finding import Finding
from holdfast.model.job import TrackerMode

from .context import CheckContext, failed, passed, unknown, warned

RESOLVE_WITHIN_S = 5.0
DAY_S = 86400.0
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


def check_allocator(situation: CheckContext) -> Iterator[Finding]:
    """The user's own allocator setting has the syntax that torch parses (RAIL-03)."""
    for name in (ALLOCATOR_NEW, ALLOCATOR_OLD):
        value = situation.job_environ.get(name)
        corrected = correct_allocator(value) if value is not None else None
        if corrected is not None:
            seen = f"{value!r} is not in torch's syntax (key:value, comma separated)"
            yield failed("environment.allocator", name, seen, f"export {name}={corrected}")


def check_environment(situation: CheckContext) -> Iterator[Finding]:
    """Where the user's environment and holdfast's defaults differ; the user's values are used."""
    spec = situation.spec
    torch = find_torch(spec.command, situation.job_environ, spec.workdir)
    placement = LaunchContext(
        *("", "", 0, "start", "", "", "", ""),
        threads=spec.threads or cap_threads(count_job_cores(spec.limits), processes=max(spec.gpus.wanted, 1)),
        torch_version=torch.version,
    )
    made = build_environment(situation.environ, spec, placement)
    yield from made.findings
    if not made.findings:
        known = f"torch {torch.version}" if torch.version else "torch's version not known: both names are set"
        yield passed("environment", "environment", f"nothing set by hand differs from the defaults ({known})")


def check_tracker(situation: CheckContext) -> Iterator[Finding]:
    """The tracker mode is a choice, and what it loses is said; online needs a credential (RAIL-11)."""
    tracker = situation.spec.tracker
    if tracker is TrackerMode.OFFLINE:
        seen = "offline: no live curves; the run's records stay in its wandb/ directory until `wandb sync`"
        yield passed("tracker", "tracker", seen)
    elif tracker is TrackerMode.ONLINE and not has_credential(situation):
        seen = "online is asked for, with neither WANDB_API_KEY nor an entry in ~/.netrc, so nothing would be logged"
        yield failed("tracker", "tracker", seen, "run `wandb login` once, or tracker: offline")
    else:
        yield passed("tracker", "tracker", f"{tracker.value}")


def has_credential(situation: CheckContext) -> bool:
    """Whether a W&B credential is there; it is looked for, never read out. Source: W&B docs, environment variables."""
    environ = situation.job_environ
    if environ.get("WANDB_API_KEY") or "WANDB_API_KEY" in situation.spec.secrets:
        return True
    host = environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("://")[-1].split("/")[0].split(":")[0]
    path = environ.get("NETRC") or f"{environ.get('HOME', '')}/.netrc"
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            words = file.read(65536).split()
    except OSError:
        return False
    return any(word == "machine" and words[place + 1 : place + 2] == [host] for place, word in enumerate(words))


def check_clock(situation: CheckContext) -> Iterator[Finding]:
    """The clock is right enough for what leaves this box: credentials, uploads, a tracker's curves (PRE-21)."""
    if situation.spec.tracker is TrackerMode.ONLINE:
        yield from judge_clock(situation.now_epoch_s)


def judge_clock(now_epoch_s: float) -> Iterator[Finding]:
    """Whether the clock is after this program was made, and whether somebody keeps it."""
    made = os.stat(__file__).st_mtime
    kept = is_clock_synchronised()
    remedy = "timedatectl set-ntp true, or ask an administrator; in a container it is the host's clock"
    if now_epoch_s < made - DAY_S:
        seen = (
            f"is {(made - now_epoch_s) / DAY_S:.0f} days before this program was installed: certificates will not hold"
        )
        yield failed("clock", "clock", seen, remedy)
    elif kept is None:
        yield unknown("clock", "clock", "whether it is synchronised cannot be asked here", remedy)
    elif not kept:
        yield warned("clock", "clock", "the kernel's clock is not synchronised by anything", remedy)
    else:
        yield passed("clock", "clock", "is synchronised")


def check_names(situation: CheckContext) -> Iterator[Finding]:
    """The tracker's host has an address: asked only of jobs that are online (PRE-21)."""
    if situation.spec.tracker is not TrackerMode.ONLINE:
        return
    base = situation.job_environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    yield resolve_host(base.split("://")[-1].split("/")[0].split("@")[-1].split(":")[0], situation.job_environ)


def resolve_host(host: str, environ: Mapping[str, str]) -> Finding:
    """Whether a name resolves, asked in a child: a resolver that does not answer blocks for half a minute and more.

    Behind a proxy the proxy resolves, so a failure is a warning there. The proxy's variables are named, not shown.
    """

    def work() -> object:
        try:
            return {"addresses": len(socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM))}
        except OSError as error:
            return {"error": error.strerror or str(error)}

    proxies = [name for name in PROXIES if environ.get(name)]
    route = f"; the route goes through {', '.join(proxies)}" if proxies else ""
    try:
        answer = Offload(work).wait(RESOLVE_WITHIN_S)
        problem = str(answer.get("error", ""))
    except OffloadFailed as error:
        problem = str(error)
    if not problem:
        return passed("names", host, f"has an address{route}")
    report = warned if proxies else failed
    return report("names", host, f"has no address: {problem}{route}", "see /etc/resolv.conf, or tracker: offline")


def check_messages(situation: CheckContext) -> Iterator[Finding]:
    """Whoever the job tells can be told from here. What is wrong is a warning: no reason not to run."""
    for found in look_at_ways(situation.spec.notify, situation.spec.channels, situation.environ):
        if found.problem:
            yield warned("notify", found.label, found.problem, found.remedy)
        else:
            yield passed("notify", found.label, found.fine)


def check_job_secrets(situation: CheckContext) -> Iterator[Finding]:
    """Every secret that the job names can be had here. Whether it works is `holdfast secret check`'s to say."""
    for use in read_uses(situation.spec.secrets):
        try:
            read_variables((use,))
        except SecretUnusableError as error:
            remedy = f"here: holdfast secret push local {use.name}; from a desk: holdfast secret push PLACE {use.name}"
            yield failed("secrets", use.name, error.why, remedy)
        else:
            yield passed("secrets", use.name, "is on this box, for this account alone")
