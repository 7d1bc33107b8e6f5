"""The parts of ``benchmarks/training.py``: what is measured, in which order, and how rounds become rows."""

from __future__ import annotations

import os
import statistics
from typing import TYPE_CHECKING

from benchmarks.measuring import must, spread
from benchmarks.training_workers import ROOT, copy_raw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.measuring import Call, Row
    from benchmarks.training_workers import Heard, Workshop

    Rows = dict[str, Row]

NAMES = {
    "memcpy": "memcpy (torch, into used buffers)",
    "torch.save": "torch.save + fsync",
    "safetensors": "safetensors + fsync",
    "safetensors-one": "safetensors, one tensor in memory at a time",
    "dcp": "DCP save",
    "dcp-thread": "DCP async_save, thread",
    "dcp-process": "DCP async_save, process, shared memory",
    "torchsnapshot": "torchsnapshot async_take",
    "orbax": "Orbax async",
    "holdfast": "holdfast",
    "nothing": "nothing (control)",
}
PEERS = ("torch.save", "safetensors", "dcp", "dcp-thread", "dcp-process", "torchsnapshot", "orbax")
RAW = "raw disk (dd, conv=fsync)"
MB = 1_000_000


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)


def pause(shop: Workshop, size: str, *, rounds: int, saves: int, peers: Sequence[str]) -> Rows:
    """How long a save holds the loop up, and how long until it is durable; the first save apart."""
    methods = ["memcpy", *peers, "holdfast"]
    heard: dict[str, list[Heard]] = {method: [] for method in methods}
    raw: list[float] = []
    for number in range(rounds):
        raw.append(copy_raw(shop.directory, int(size) * MB if size.isdigit() else 164 * MB, shop.quiet))
        for method in methods if number % 2 == 0 else reversed(methods):
            heard[method].append(shop.run("pause", method, size, saves))
    rows: Rows = {RAW: {"n": len(raw), "durable_ms": _ms(statistics.median(raw)), "durable_min_ms": _ms(min(raw))}}
    for method in methods:
        row = rows[NAMES[method]] = _saves_row(heard[method])
        if "note" not in row and method != "memcpy":
            row["x_memcpy"] = _ratio(heard[method], heard["memcpy"], "block_s")
            if "safetensors" in heard:
                row["x_safetensors"] = _ratio(heard[method], heard["safetensors"], "durable_s")
    return rows


def _saves_row(rounds: list[Heard]) -> Row:
    blocked = [value for heard in rounds for value in heard.values("block_s", first=False)]
    durable = [value for heard in rounds for value in heard.values("durable_s", first=False)]
    first = [value for heard in rounds for value in heard.values("block_s", first=True)]
    if not blocked:
        return {"note": next((heard.note for heard in rounds if heard.note), "nothing measured")}
    row: Row = {
        "n": len(blocked),
        "pause_ms": _ms(statistics.median(blocked)),
        "pause_min_ms": _ms(min(blocked)),
        "pause_max_ms": _ms(max(blocked)),
        "first_ms": _ms(statistics.median(first)),
        "durable_ms": _ms(statistics.median(durable)),
        "durable_min_ms": _ms(min(durable)),
    }
    return row


def _ratio(ours: list[Heard], theirs: list[Heard], key: str) -> float | None:
    """The median over the rounds of one's median to the other's in the same round: the disk changes between rounds."""
    found = []
    for mine, other in zip(ours, theirs, strict=True):
        here, there = mine.values(key, first=False), other.values(key, first=False)
        if here and there:
            found.append(statistics.median(here) / statistics.median(there))
    return round(statistics.median(found), 2) if found else None


def lost(shop: Workshop, *, rounds: int, saves: int, peers: Sequence[str]) -> Rows:
    """Training time that a save costs: the call, and what the nine steps after it take longer than those before it."""
    methods = ["nothing", "holdfast", *peers, "holdfast", "nothing"]
    heard: dict[str, list[Heard]] = {method: [] for method in methods}
    for _ in range(rounds):
        for method in methods:
            heard[method].append(shop.run("lost", method, "500", saves))
    return {NAMES[method]: _lost_row(found) for method, found in heard.items()}


def _lost_row(rounds: list[Heard]) -> Row:
    costs, blocked, worst, base = [], [], [], []
    for line in (line for heard in rounds for line in heard.lines if "after_s" in line):
        usual = statistics.median(line["before_s"])
        base.append(usual)
        costs.append(line["block_s"] + sum(line["after_s"]) - usual * len(line["after_s"]))
        blocked.append(line["block_s"])
        worst.append(max(line["after_s"]))
    if not costs:
        return {"note": next((heard.note for heard in rounds if heard.note), "nothing measured")}
    ordered = sorted(costs)
    return {
        "n": len(costs),
        "lost_ms": _ms(statistics.median(costs)),
        "lost_q1_ms": _ms(ordered[len(ordered) // 4]),
        "lost_q3_ms": _ms(ordered[-1 - len(ordered) // 4]),
        "pause_ms": _ms(statistics.median(blocked)),
        "step_ms": _ms(statistics.median(base)),
        "worst_step_ms": _ms(statistics.median(worst)),
    }


def memory(shop: Workshop, *, peers: Sequence[str]) -> Rows:
    """What saving takes beyond the state itself, over all processes: at most, and between saves."""
    rows: Rows = {}
    for method in (*peers, "holdfast"):
        heard = shop.run_for_memory(method, "500")
        state = next(iter(heard.values("nbytes")), 0.0)
        if not heard.values("peak"):
            rows[NAMES[method]] = {"note": heard.note or "nothing measured"}
            continue
        peak, held, before = (heard.values(key)[0] for key in ("peak", "held", "baseline"))
        rows[NAMES[method]] = {
            "extra_peak_mb": round((peak - before) / MB),
            "extra_held_mb": round((held - before) / MB),
            "x_state": round((peak - before) / state, 3),
        }
    return rows


def load(shop: Workshop, *, rounds: int, peers: Sequence[str]) -> Rows:
    """From a checkpoint on the disk, or in the page cache, to arrays in memory."""
    rows: Rows = {}
    wanted = [peer for peer in ("torch.save", "safetensors") if peer in peers]
    for method in (*wanted, "safetensors-one", "holdfast"):
        heard = shop.run("load", method, "500", rounds)
        cold, warm = heard.values("cold_s"), heard.values("warm_s")
        if not cold:
            rows[NAMES[method]] = {"note": heard.note or "nothing measured"}
            continue
        rows[NAMES[method]] = {
            "n": len(cold),
            "cold_ms": _ms(statistics.median(cold)),
            "cold_min_ms": _ms(min(cold)),
            "warm_ms": _ms(statistics.median(warm)),
            "warm_min_ms": _ms(min(warm)),
            "warm_cpu_min_ms": _ms(min(heard.values("warm_cpu_s"))),
        }
    peer, ours = rows.get(NAMES["safetensors"], {}), rows[NAMES["holdfast"]]
    for key in ("cold", "warm"):
        if f"{key}_min_ms" in peer and f"{key}_min_ms" in ours:
            ours[f"{key}_x"] = round(float(ours[f"{key}_min_ms"]) / float(peer[f"{key}_min_ms"]), 2)
    return rows


IMPORTS = {
    "python -c pass": "pass",
    "import holdfast.training": "import holdfast.training",
    "from holdfast.training import run": "from holdfast.training import run",
    "from holdfast.training import run; run()": "from holdfast.training import run; run()",
}


def imports(shop: Workshop, *, rounds: int) -> Rows:
    """What importing costs a script, beyond the interpreter."""
    environ = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": f"{ROOT}/src"}
    calls: dict[str, list[Call]] = {name: [] for name in IMPORTS}
    for number in range(rounds + 1):
        for name, code in IMPORTS.items():
            done = must([shop.python, "-c", code], environ, shop.directory)
            if number:  # the first one compiles and fills the page cache
                calls[name].append(done)
    bare = statistics.median(call.cpu_s for call in calls["python -c pass"])
    rows: Rows = {}
    for name, done_calls in calls.items():
        cpu = statistics.median(call.cpu_s for call in done_calls)
        rows[name] = {
            **spread([call.wall_s for call in done_calls]),
            "cpu_p50_ms": _ms(cpu),
            "over_python_ms": _ms(cpu - bare),
        }
    return rows


STEPS = {
    "paced": "steps + log at 100 steps/s",
    "control": "nothing at 100 steps/s (control)",
    "empty": "steps + log, empty body",
}


def steps(shop: Workshop, *, seconds: int) -> Rows:
    """What `run.steps` and `run.log` take of a training loop."""
    heard = shop.run("steps", "-", "-", seconds)
    rows: Rows = {}
    for line in heard.lines:
        count = line.get("paced") or line.get("control") or line.get("empty")
        if not count:
            continue
        each = line["spent_s"] / count
        row: Row = {"n": int(count), "us_per_step": round(each * 1e6, 1)}
        if "paced" in line:
            row |= {
                "cpu_us_per_step": round(line["cpu_s"] / count * 1e6, 1),
                "worst_ms": round(line["worst_s"] * 1e3, 2),
            }
            row["percent"] = round(each * 100 * 100, 2)
        if "control" in line:
            row["percent"] = round(each * 100 * 100, 2)
        rows[STEPS[next(key for key in STEPS if key in line)]] = row
    return rows or {"steps": {"note": heard.note or "nothing measured"}}
