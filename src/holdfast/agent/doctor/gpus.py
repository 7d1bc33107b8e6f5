"""The doctor's findings about cards: what holds their memory, and whether an interpreter's framework reaches them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.agent.checks import framework
from holdfast.agent.checks.context import failed, passed, unknown, warned
from holdfast.agent.view.runs.leftovers import find_leftovers, list_live_processes
from holdfast.core.cards.holder_words import advise_on_process
from holdfast.diagnosis.cards import holders
from holdfast.diagnosis.cards.health import FAULT_ACTIONS
from holdfast.diagnosis.cards.holders import (
    BETWEEN_LOOKS_S,
    HIDDEN_BYTES,
    HiddenHolder,
    OpenNodes,
    hidden_bytes,
    judge_holders,
)
from holdfast.host.gpu.inventory import read_inventory
from holdfast.host.gpu.processes import read_process_view
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model import wire
from holdfast.model.finding import Finding, Level
from holdfast.model.gpu import Card, GpuProcess, HolderKind, InventorySource
from holdfast.model.units import format_bytes, format_count

if TYPE_CHECKING:
    from .host import HostFacts

DRIVER_WITHIN_S = 10.0
TORCH_WITHIN_S = 40.0


def check_cards(host: HostFacts) -> Iterator[Finding]:
    """Driver and cards, through the probe child: one that hangs costs the deadline."""
    host.tell(f"asking the driver (up to {DRIVER_WITHIN_S:g} s)")
    inventory = host.inventory = read_inventory(DRIVER_WITHIN_S)
    if not inventory.cards:
        seen = inventory.reason or "there is none"
        if host.has_cards:
            remedy = "run nvidia-smi; after an update of the driver the box must be restarted"
            yield failed(
                "doctor.driver", "NVIDIA driver", f"its device files are there, and no card is: {seen}", remedy
            )
        elif inventory.complete:
            yield passed("doctor.driver", "NVIDIA driver", f"no cards here: {seen}")
        else:
            yield unknown("doctor.driver", "NVIDIA driver", seen, "run nvidia-smi")
        return
    marked = " (simulated)" if inventory.source is InventorySource.SIMULATED else ""
    cuda = f", takes CUDA up to {inventory.cuda_version}" if inventory.cuda_version else ""
    versions = f"driver {inventory.driver_version or 'of unknown version'}{cuda}"
    seen = f"{format_count(len(inventory.cards), 'card')}{marked}, {versions}"
    report = passed("doctor.driver", "NVIDIA driver", seen)
    if not inventory.complete:
        report = unknown("doctor.driver", "NVIDIA driver", f"{seen}; {inventory.reason}", "run nvidia-smi")
    yield report
    for card in inventory.cards:
        yield from _judge_card(card)


def _judge_card(card: Card) -> Iterator[Finding]:
    subject = f"card {card.index}"
    for fault in card.faults:
        code = fault.partition(":")[0]
        remedy = FAULT_ACTIONS.get(code, "tell an administrator")
        if not card.uuid.startswith("UNREADABLE-"):
            remedy += f"; until then: holdfast gpus quarantine {card.index} --reason {code}"
        yield failed("doctor.card", subject, fault, remedy)
    if not card.faults:
        used, total = card.memory_used_bytes, card.memory_total_bytes
        memory = "" if used is None or total is None else f", {format_bytes(used)} of {format_bytes(total)} in use"
        yield passed("doctor.card", subject, f"{card.name}{memory}")
    for process in card.processes or ():
        if process.kind is HolderKind.GHOST:
            yield _describe_ghost(process, subject)


def _describe_ghost(process: GpuProcess, subject: str) -> Finding:
    size = "" if process.used_bytes is None else f" with {format_bytes(process.used_bytes)}"
    seen = f"the driver lists process {process.pid}{size}, which does not exist any more"
    return warned("doctor.ghost", subject, seen, advise_on_process(process, own=False))


def check_holders(host: HostFacts) -> Iterator[Finding]:
    """Memory that no listed process accounts for, and which of this account's processes may hold it."""
    inventory = host.inventory
    cards = [] if inventory is None or inventory.source is not InventorySource.NVML else list(inventory.cards)
    suspicious = [card for card in cards if (hidden_bytes(card) or 0) > HIDDEN_BYTES]
    if not suspicious:
        return
    host.tell(f"memory is held by nobody visible: looking twice, {BETWEEN_LOOKS_S:g} s apart")
    looks = _look_twice()
    if isinstance(looks, str):
        yield unknown("doctor.holders", "cards", looks, "fuser -v /dev/nvidia*")
        return
    over = {one.run_id for one in find_leftovers(roots=host.roots).found}
    live = {process.pid for process in list_live_processes(host.roots)}
    for card in suspicious:
        size = format_bytes(hidden_bytes(card) or 0)
        everyone = read_process_view().complete
        reading = judge_holders(card, *looks, over_runs=over, live_pids=live, sees_everyone=everyone)
        if reading.value is None:
            seen = f"{size} are held by no visible process; whose they are cannot be told: {reading.unread}"
            yield unknown("doctor.holders", f"card {card.index}", seen, "fuser -v /dev/nvidia* as root")
        elif not reading.value:
            seen = f"{size} are held by no visible process, and none of this account's processes is idle on it"
            yield warned("doctor.holders", f"card {card.index}", seen, "restart the container, or ask an administrator")
        for candidate in reading.value or ():
            yield _describe_candidate(candidate, card, size)


def _look_twice() -> tuple[OpenNodes, OpenNodes] | str:
    """Two looks at this account's holders, each in a child; a sentence when one did not answer."""
    found = []
    for number in range(2):
        if number:
            time.sleep(holders.BETWEEN_LOOKS_S)
        try:
            found.append(
                wire.decode(holders.OpenNodes, Offload(lambda: wire.encode(holders.find_open_nodes())).wait(10.0))
            )
        except (OffloadFailed, wire.WireError, OSError) as error:
            return f"processes could not be looked at: {error}"
    return found[0], found[1]


def _describe_candidate(candidate: HiddenHolder, card: Card, size: str) -> Finding:
    seen = f"process {candidate.pid} ({candidate.command[:60]}): {'; '.join(candidate.why)}; {size} are unaccounted for"
    if candidate.leftover_of:
        remedy = "holdfast doctor --reap"
    else:
        since = f"{candidate.age_s / 3600:.1f} h"
        text = _word_request(
            candidate.pid, user="<owner>", command=candidate.command, held=f"card {card.index}", since=since
        )
        remedy = f"it carries no run's marker, so it is not ended from here; if it is not yours to end: {text}"
    return warned("doctor.holders", f"card {card.index}", seen, remedy)


def check_framework(host: HostFacts) -> Iterator[Finding]:
    """The torch of the interpreter that jobs would use, asked in a child."""
    names = (host.python,) if host.python else ("python", "python3")
    found = (framework.find_python((name,), host.environ, os.getcwd()) for name in names)
    python = next((one for one in found if one is not None), None)
    if python is None:
        if host.python:
            yield failed("doctor.python", host.python, "is no Python that can be looked at", "name one: --python PATH")
        else:
            seen = "neither python nor python3 is on PATH"
            yield warned("doctor.python", "python", seen, "name the one that your jobs use: --python PATH")
        return
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(python.path)))
    if framework.is_conda_base(prefix) and not framework.find_rental(host.environ, root=host.root):
        seen = "is conda's base environment: what one project installs there breaks conda and every other project"
        yield warned("environment.base", prefix, seen, "conda create -n NAME python=3.11, and run from there")
    if python.has_torch is False:
        yield passed("framework.torch", python.path, "has no torch; another interpreter: --python PATH")
        return
    if not host.has_cards and host.inventory is not None and not host.inventory.complete:
        seen = "not asked about cards: whether there are any could not be read"
        yield unknown("framework.torch", python.path, seen, "see the finding about the driver")
        return
    if not host.has_cards:
        yield passed("framework.torch", python.path, "not asked about cards: there are none here")
        return
    host.tell(f"asking torch in {python.path} (up to {TORCH_WITHIN_S:g} s)")
    for finding in framework.judge_interpreter(python.path, host.environ, within_s=TORCH_WITHIN_S):
        # Which interpreter jobs will use is a guess unless it was named.
        if finding.level is Level.FAIL and not host.python:
            remedy = f"{finding.remedy}; or look at the one that your jobs use: --python PATH"
            yield Finding(finding.id, Level.WARN, finding.subject, finding.evidence, remedy)
        else:
            yield finding


def _word_request(pid: int, *, user: str, command: str, held: str, since: str) -> str:
    """A message to the owner of a process that is not ours to end, ready to be sent."""
    host = os.uname().nodename
    return (
        f"Hello {user}, on {host} your process {pid} ({command[:80]}) holds {held} since {since} and seems to do "
        f"nothing. Could you look (ps -fp {pid}) and end it if you do not need it (kill {pid})? Thank you."
    )
