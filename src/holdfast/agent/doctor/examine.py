"""All sections in their order; one that breaks is a finding of its own and hides nothing of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.finding import Finding, Level
from . import gpus, host, runs, tools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .host import Host

    Section = Callable[[Host], Iterable[Finding]]

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


def examine(
    asked: Host, sections: tuple[tuple[str, Section], ...] = SECTIONS
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
