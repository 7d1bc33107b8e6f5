"""The training library's targets, and how its results become text: for a terminal, and in ``docs/benchmarks.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.report import Target, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from benchmarks.measuring import Row

BEGIN = "<!-- training: begin (benchmarks/training.py --docs writes this part) -->"
END = "<!-- training: end -->"

TITLES = {
    "pause": "A save of 500 MB: the loop's pause, and the time until it is durable",
    "pause-2000": "A save of 2 GB",
    "pause-many": "A save of 13,000 small tensors, 164 MB",
    "lost": "Training time lost per save of 500 MB (steps on one core, the other one free)",
    "memory": "Memory while saving 500 MB, beyond the state (all processes; without page cache)",
    "load": "Loading 500 MB",
    "imports": "Import",
    "steps": "Cost of a step",
}

COLUMNS = {
    "n": "n",
    "pause_ms": "pause p50 ms",
    "pause_min_ms": "min",
    "pause_max_ms": "max",
    "first_ms": "first save ms",
    "durable_ms": "durable p50 ms",
    "durable_min_ms": "min ",
    "x_memcpy": "pause x memcpy",
    "x_safetensors": "durable x safetensors",
    "lost_ms": "lost p50 ms",
    "lost_q1_ms": "q1",
    "lost_q3_ms": "q3",
    "step_ms": "step ms",
    "worst_step_ms": "worst step after, p50 ms",
    "extra_peak_mb": "most, MB",
    "extra_held_mb": "kept between saves, MB",
    "x_state": "most x state",
    "cold_ms": "from the disk p50 ms",
    "cold_min_ms": "min",
    "warm_ms": "from the page cache p50 ms",
    "warm_min_ms": "min ",
    "warm_cpu_min_ms": "CPU min ms",
    "cold_x": "disk x safetensors",
    "warm_x": "page cache x safetensors",
    "p50_ms": "p50 ms",
    "min_ms": "min",
    "p95_ms": "p95",
    "max_ms": "max",
    "cpu_p50_ms": "CPU p50 ms",
    "over_python_ms": "CPU beyond Python, ms",
    "us_per_step": "us per step",
    "cpu_us_per_step": "CPU us per step",
    "worst_ms": "worst ms",
    "percent": "% of the time",
}

TARGETS = (
    Target("pause", "holdfast", "x_memcpy", 1.25, "x memcpy, pause at 500 MB"),
    Target("pause-2000", "holdfast", "x_memcpy", 1.25, "x memcpy, pause at 2 GB"),
    Target("lost", "holdfast", "lost_ms", 100, "ms of training lost per save"),
    Target("pause", "holdfast", "x_safetensors", 1.1, "x safetensors + fsync until durable, 500 MB"),
    Target("pause-2000", "holdfast", "x_safetensors", 1.1, "x safetensors + fsync until durable, 2 GB"),
    Target("memory", "holdfast", "x_state", 1.05, "x the state, memory while saving"),
    Target("pause-many", "holdfast", "x_memcpy", 2, "x memcpy, pause of 13,000 small tensors"),
    Target("load", "holdfast", "warm_x", 2, "x safetensors, 500 MB from the page cache (minima)"),
    Target("load", "holdfast", "cold_x", 1.1, "x safetensors, 500 MB from the disk (minima)"),
    Target("imports", "import holdfast.training", "over_python_ms", 40, "ms CPU beyond Python"),
    Target("imports", "from holdfast.training import run", "over_python_ms", 40, "ms CPU beyond Python"),
    Target("steps", "steps + log at 100 steps/s", "percent", 0.5, "% of the time"),
)


def judge(results: Mapping[str, Mapping[str, Row]]) -> list[tuple[Target, float | None]]:
    """Each target of the parts that were measured, and the number that was found (None: there is none)."""
    found: list[tuple[Target, float | None]] = []
    for target in TARGETS:
        if target.section in results:
            value = results[target.section].get(target.row, {}).get(target.key)
            found.append((target, value if isinstance(value, (int, float)) else None))
    return found


def text(record: Mapping[str, Any]) -> str:
    """Everything, for a terminal."""
    lines = [_conditions(record)]
    for part, rows in record["results"].items():
        lines += ["", TITLES[part]]
        width = max(len(name) for name in rows) + 2
        for name, row in rows.items():
            values = "  ".join(f"{COLUMNS.get(key, key).strip()} {value}" for key, value in row.items())
            lines.append(f"  {name:{width}}{values}")
    lines += ["", "Targets"]
    for target, value in judge(record["results"]):
        seen = "-" if value is None else f"{value:g}"
        lines.append(f"  {verdict(target, value):13}{target.row}: {seen}, at most {target.limit:g} {target.unit}")
    return "\n".join(lines)


def markdown(record: Mapping[str, Any]) -> str:
    """The tables of docs/benchmarks.md."""
    lines = [_conditions(record), "", "### Targets of the training library", ""]
    lines += ["| what | measured | target | |", "|---|---|---|---|"]
    for target, value in judge(record["results"]):
        seen = "-" if value is None else f"{value:g}"
        lines.append(f"| {target.row} | {seen} | <= {target.limit:g} {target.unit} | {verdict(target, value)} |")
    for part, rows in record["results"].items():
        lines += ["", f"### {TITLES[part]}", "", *_table(rows)]
    return "\n".join(lines)


def _conditions(record: Mapping[str, Any]) -> str:
    machine, others = record["machine"], record["others"]
    load = ", ".join(f"{value:.2f}" for value in record["load_before"])
    libraries = ", ".join(f"{name} {version}" for name, version in record["libraries"].items())
    return (
        f"{record['date']}, `{record['command']}`, {record['duration_s']:.0f} s, commit {record['commit']}.\n\n"
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, Linux {machine['kernel']}, "
        f"Python {machine['python']}, files on {machine['filesystem']}. Load before: {load}. Others used "
        f"{others['p50']:.2f} processors while a process measured (median; at most {others['max']:.2f}). "
        f"{libraries}. GPUs: none."
    )


def _table(rows: Mapping[str, Row]) -> list[str]:
    keys = list(dict.fromkeys(key for row in rows.values() for key in row if key != "note"))
    lines = [f"| | {' | '.join(COLUMNS.get(key, key).strip() for key in keys)} |", f"|---|{'---|' * len(keys)}"]
    for name, row in rows.items():
        jobs = [_job(row.get(key)) for key in keys]
        if "note" in row:
            jobs[:1] = [str(row["note"]).replace("|", "/")]
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
