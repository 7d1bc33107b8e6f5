"""The targets, and how results become text: for a terminal, and the tables in ``docs/benchmarks.md``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from benchmarks.measuring import Row

    Results = Mapping[str, Mapping[str, Row]]

BEGIN = "<!-- measured: begin (benchmarks/run.py --docs writes this part) -->"
END = "<!-- measured: end -->"

TITLES = {
    "startup": "Commands",
    "start": "From the command to the job's first instruction",
    "handover": "A card's way from one job to the next",
    "stop": "Stopping a tree of 200 processes (grace 1 s, not counted)",
    "rest": "At rest beside one sleeping job",
    "messages": "A message after the end of a job, at a webhook on loopback",
    "leases": "Leases",
    "queue": "The queue: short commands from a file on two slots, and ten thousand jobs",
}

NAMES = {
    "n": "n",
    "p50_ms": "p50 ms",
    "min_ms": "min",
    "p95_ms": "p95",
    "max_ms": "max",
    "cpu_p50_ms": "CPU p50 ms",
    "cpu_p95_ms": "CPU p95",
    "cpu_mean_ms": "CPU mean ms",
    "ratio_to_python_p50": "x bare Python",
    "kernel_empty_p50_ms": "kernel says empty, p50 ms",
    "empty_ms": "to empty, grace included, ms",
    "survivors": "survivors",
    "overlaps": "two at once",
    "own_p50_ms": "p50 without waiting for a processor",
    "granted": "granted",
    "refused": "refused",
    "doubles": "double grants",
    "clients": "clients",
    "cards": "cards",
    "wall_s": "s in all",
    "per_job_ms": "ms each",
    "cpu_s": "CPU s in all",
    "rss_mib": "RSS MiB",
    "pss_mib": "PSS MiB",
    "private_mib": "private MiB",
    "cpu_percent": "% of a core",
    "processes": "processes",
}


@dataclass(frozen=True, slots=True)
class Target:
    """What must hold: the number `key` of `row` in `section` is at most `limit` (in the key's unit)."""

    section: str
    row: str
    key: str
    limit: float
    unit: str = "ms"


TARGETS = (
    Target("startup", "holdfast --version", "cpu_p50_ms", 60, "ms CPU"),
    Target("startup", "holdfast --help", "cpu_p50_ms", 60, "ms CPU"),
    Target("startup", "holdfast ls, 1,000 runs", "cpu_p50_ms", 60, "ms CPU"),
    Target("startup", "holdfast stop, ended run", "cpu_p50_ms", 70, "ms CPU"),
    Target("startup", "holdfast show", "cpu_p50_ms", 80, "ms CPU"),
    Target("startup", "holdfast queue", "cpu_p50_ms", 80, "ms CPU"),
    Target("start", "holdfast run -d", "p50_ms", 120),
    Target("start", "holdfast run -d", "ratio_to_python_p50", 3, "x `python -c pass`"),
    Target("handover", "holdfast, simulated card", "p50_ms", 20),
    Target("handover", "holdfast, fake NVML", "p50_ms", 25),
    Target("handover", "holdfast, fake NVML, jobs of 2 s, one in line at a time", "p50_ms", 30),
    Target("stop", "holdfast, pid_namespace", "p50_ms", 500, "ms beyond the grace"),
    Target("stop", "holdfast, pid_namespace", "survivors", 0, "survivors"),
    Target("stop", "holdfast, cgroup_v2", "p50_ms", 500, "ms beyond the grace"),
    Target("stop", "holdfast, cgroup_v2", "survivors", 0, "survivors"),
    Target("stop", "holdfast, cgroup_v1", "p50_ms", 500, "ms beyond the grace"),
    Target("stop", "holdfast, cgroup_v1", "survivors", 0, "survivors"),
    Target("stop", "holdfast, subreaper", "p50_ms", 500, "ms beyond the grace"),
    Target("stop", "holdfast, subreaper", "survivors", 0, "survivors"),
    Target("stop", "holdfast, process_group", "p50_ms", 500, "ms beyond the grace"),
    Target("stop", "holdfast, process_group", "survivors", 0, "survivors"),
    Target("rest", "holdfast supervisor, without a card", "pss_mib", 12, "MiB PSS"),
    Target("rest", "holdfast supervisor, fake NVML", "pss_mib", 12, "MiB PSS"),
    Target("rest", "holdfast, all of a run, without a card", "pss_mib", 24, "MiB PSS"),
    Target("rest", "holdfast, all of a run, fake NVML", "pss_mib", 24, "MiB PSS"),
    Target("rest", "holdfast, all of a run, without a card", "cpu_percent", 0.1, "% of a core"),
    Target("rest", "holdfast, all of a run, fake NVML", "cpu_percent", 0.1, "% of a core"),
    Target("rest", "holdfast, nothing runs", "processes", 0, "processes"),
    Target("messages", "a success", "p95_ms", 2000),
    Target("messages", "a failure, judged", "p95_ms", 2000),
    Target("leases", "storm", "doubles", 0, "double grants"),
    Target("leases", "storm", "cpu_p50_ms", 2, "ms CPU"),
    Target("leases", "storm", "p50_ms", 2, "ms by the wall clock"),
    Target("leases", "cycle, 1 card", "p50_ms", 2, "ms, one client alone"),
    Target("queue", "holdfast submit --lines, full records", "wall_s", 3, "s for 200 commands"),
    Target("queue", "enqueue, 10,000 jobs", "wall_s", 2, "s"),
    Target("queue", "queue ls, 10,000 jobs", "cpu_p50_ms", 100, "ms CPU"),
    Target("queue", "worker, 10,000 jobs", "rss_mib", 40, "MiB RSS"),
    Target("queue", "card idle between two jobs, simulated card", "p50_ms", 20),
    Target("queue", "card idle between two jobs, simulated card", "max_ms", 60),
)


def judge(results: Results) -> list[tuple[Target, float | None]]:
    """Each target of the sections that were measured, and the number that was found (None: there is none)."""
    found: list[tuple[Target, float | None]] = []
    for target in TARGETS:
        if target.section in results:
            value = results[target.section].get(target.row, {}).get(target.key)
            found.append((target, value if isinstance(value, (int, float)) else None))
    return found


def verdict(target: Target, value: float | None) -> str:
    """One word for a person."""
    if value is None:
        return "not measured"
    return "met" if value <= target.limit else "MISSED"


def text(record: Mapping[str, Any]) -> str:
    """Everything, for a terminal."""
    lines = []
    for section, rows in record["results"].items():
        lines += ["", TITLES[section]]
        width = max(len(name) for name in rows) + 2
        for name, row in rows.items():
            values = "  ".join(f"{NAMES.get(key, key)} {value}" for key, value in row.items())
            lines.append(f"  {name:{width}}{values}")
    lines += ["", "Targets"]
    for target, value in judge(record["results"]):
        seen = "-" if value is None else f"{value:g}"
        line = f"  {verdict(target, value):13}{target.row}: {seen}, at most {target.limit:g} {target.unit}"
        lines.append(line)
    return "\n".join(lines)


def markdown(record: Mapping[str, Any]) -> str:
    """The tables of docs/benchmarks.md."""
    lines = [_machine(record), "", "### Targets", "", "| what | measured | target | |", "|---|---|---|---|"]
    for target, value in judge(record["results"]):
        seen = "-" if value is None else f"{value:g}"
        lines.append(f"| {target.row} | {seen} | <= {target.limit:g} {target.unit} | {verdict(target, value)} |")
    for section, rows in record["results"].items():
        lines += ["", f"### {TITLES[section]}", "", *_table(rows)]
    return "\n".join(lines)


def _machine(record: Mapping[str, Any]) -> str:
    machine = record["machine"]
    load = ", ".join(f"{value:.2f}" for value in record["load_before"])
    return (
        f"{record['date']}, `{record['command']}`, {record['duration_s']:.0f} s, commit {record['commit']}.\n\n"
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, Linux {machine['kernel']}, "
        f"Python {machine['python']}, files on {machine['filesystem']}. Load before: {load}; after: "
        f"{', '.join(f'{value:.2f}' for value in record['load_after'])}. "
        f"GPUs: none; peers and we see the same small fake NVML library."
    )


def _table(rows: Mapping[str, Row]) -> list[str]:
    keys = list(dict.fromkeys(key for row in rows.values() for key in row if key != "note"))
    lines = [f"| | {' | '.join(NAMES.get(key, key) for key in keys)} |", f"|---|{'---|' * len(keys)}"]
    for name, row in rows.items():
        jobs = [_job(row.get(key)) for key in keys]
        if "note" in row:
            jobs[0] = str(row["note"]).replace("|", "/")
        lines.append(f"| {name} | {' | '.join(jobs)} |")
    return lines


def _job(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, (int, float)) else str(value)


def replace_part(document: str, part: str) -> str:
    """The document with a new measured part. Raises: ValueError: it has no place for one."""
    head, found, rest = document.partition(BEGIN)
    _, closed, tail = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"the document has no part between {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{part}\n\n{END}{tail}"
