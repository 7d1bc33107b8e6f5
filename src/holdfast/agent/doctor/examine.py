"""Runs all sections of the doctor in order; one that fails is a finding of its own and hides nothing of the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from holdfast.host.files.rules_file import read_rules
from holdfast.model.finding import Finding, Level, worst
from holdfast.model.record import record

from . import gpus, host, runs, tools
from .host import HostFacts

Section = Callable[[HostFacts], Iterable[Finding]]

EXIT_FAILED = 1

SECTIONS: tuple[tuple[str, Section], ...] = (
    ("Program", host.check_program),
    ("Cards", gpus.check_cards),
    ("Cards", gpus.check_holders),
    ("Framework", gpus.check_framework),
    ("Limits", host.check_limits),
    ("Containment", host.check_containment),
    ("Login", host.check_login),
    ("Leases", host.check_leases),
    ("Runs", runs.check_leftovers),
    ("Runs", runs.check_records),
    ("Disks", runs.check_disks),
    ("Disks", runs.check_consumers),
    ("Network and clock", tools.check_network),
    ("Diagnosis", tools.check_rights),
    ("Diagnosis", tools.check_failure_rules),
    ("Diagnosis", tools.check_tools),
)
"""Title and section, in the order in which they are shown."""


def run_sections(
    asked: HostFacts, sections: tuple[tuple[str, Section], ...] = SECTIONS
) -> Iterator[tuple[str, tuple[Finding, ...]]]:
    """Each section's title and findings, as they come. Does not raise for what a section meets."""
    for title, section in sections:
        found: list[Finding] = []
        try:
            for finding in section(asked):
                found.append(finding)  # noqa: PERF402 - what was found before it broke stays
        except Exception as error:  # noqa: BLE001 - a broken section must not hide the others
            name = getattr(section, "__name__", "section").removeprefix("check_")
            seen = f"could not be looked at: {type(error).__name__}: {error}"
            found.append(Finding(f"doctor.{name}", Level.UNKNOWN, name, seen, "please report it with this text"))
        yield title, tuple(found)


@record
class Examination:
    """All findings about this host; `exit_code` is 1 when one of them is a failure."""

    level: Level
    findings: tuple[Finding, ...]
    exit_code: int


def examine_host(
    roots: Iterable[str],
    *,
    python: str | None,
    network: bool,
    tell: Callable[[str], None],
    hear: Callable[[str, tuple[Finding, ...]], None],
) -> Examination:
    """Look at this host and at the runs under `roots`.

    `tell` hears what takes long, `hear` each section's title and findings as they come.

    Raises:
        HoldfastError: the rules of the box cannot be trusted or read.
    """
    present = tuple(root for root in roots if os.path.isdir(root))
    asked = HostFacts(os.environ, read_rules(os.environ), present, python=python, network=network, tell=tell)
    found: list[Finding] = []
    for title, findings in run_sections(asked):
        found += findings
        hear(title, findings)
    level = worst(found)
    return Examination(level, tuple(found), EXIT_FAILED if level is Level.FAIL else 0)
