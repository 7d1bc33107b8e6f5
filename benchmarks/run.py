"""``make bench``: measure holdfast and its peers side by side, and say which targets are met.

    python benchmarks/run.py                 everything, about six minutes
    python benchmarks/run.py --quick         fewer rounds, about a minute; to see that it works, not for quoting
    python benchmarks/run.py --only start    one part (several times for several)
    python benchmarks/run.py --docs          also write the tables into docs/benchmarks.md

Results lie in ``benchmarks/results/latest.json``. Nothing here fails because of a time: a target that is missed is said
so, and the exit code is 1 only for a double grant, two jobs on one card, a survivor, or a part that could not run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from typing import TYPE_CHECKING, Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Started as a program, so that the first place to import from is this directory; the root is where `benchmarks` and
# `tests` (the fake NVML library) are packages.
sys.path[0] = ROOT

from benchmarks import (  # noqa: E402
    bench_handover,
    bench_messages,
    bench_queue,
    bench_rest,
    bench_start,
    bench_startup,
    bench_stop,
    peers,
    report,
)
from benchmarks.measuring import CannotMeasure, become_subreaper, end_descendants  # noqa: E402
from tests.fakes.nvml import FakeNvml, build_library  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.measuring import Row

LATEST = f"{ROOT}/benchmarks/results/latest.json"
DOCUMENT = f"{ROOT}/docs/benchmarks.md"


def main() -> int:
    """Measure, print, write."""
    options = _parse()
    become_subreaper()
    directory = tempfile.mkdtemp(prefix="holdfast-bench-")
    began, load_before = time.monotonic(), os.getloadavg()
    results: dict[str, dict[str, Row]] = {}
    broken = []
    try:
        parts = _prepare(directory, options)
        for name in options.only or parts:
            print(f"bench: {report.TITLES[name]} ...", file=sys.stderr, flush=True)
            try:
                results[name] = parts[name]()
            except Exception:  # noqa: BLE001 - one part that breaks must not lose what the others measured
                traceback.print_exc()
                broken.append(name)
            finally:
                end_descendants()
    finally:
        end_descendants()
        shutil.rmtree(directory, ignore_errors=True)
    record = {
        "schema": 1,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": " ".join(["python", *sys.orig_argv[1:]]),
        "commit": _commit(),
        "duration_s": round(time.monotonic() - began, 1),
        "machine": _describe_machine(),
        "load_before": load_before,
        "load_after": os.getloadavg(),
        "results": results,
        "broken": broken,
    }
    _write(record, docs=options.docs)
    print(report.text(record))
    return 1 if broken or _is_unsafe(results) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", action="append", choices=list(report.TITLES), help="only this part")
    parser.add_argument("--no-peers", action="store_true", help="only holdfast")
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/benchmarks.md")
    return parser.parse_args()


def _prepare(directory: str, options: argparse.Namespace) -> dict[str, Callable[[], dict[str, Row]]]:
    """Install the peers, build the payload and the fake library; answers the parts, ready to be called."""
    quick, with_peers = options.quick, not options.no_peers
    if with_peers:
        for name, reason in peers.install().items():
            print(f"bench: {name} {reason}", file=sys.stderr)
    payload = f"{directory}/payload"
    subprocess.run(["cc", "-O2", "-o", payload, f"{ROOT}/benchmarks/payload.c"], check=True)
    nvml = FakeNvml(build_library(f"{directory}/nvml"), f"{directory}/cards", cards=1).environment()

    def place(name: str) -> str:
        os.makedirs(f"{directory}/{name}")
        return f"{directory}/{name}"

    return {
        "startup": lambda: bench_startup.measure(
            place("startup"), nvml, rounds=3 if quick else 15, runs=1000, peers=with_peers
        ),
        "start": lambda: bench_start.measure(
            place("start"), nvml, payload, rounds=4 if quick else 21, peers=with_peers and not quick
        ),
        "handover": lambda: bench_handover.measure(
            place("handover"), nvml, payload, jobs=3 if quick else 12, peers=with_peers and not quick
        ),
        "stop": lambda: bench_stop.measure(
            place("stop"), nvml, payload, rounds=1 if quick else 3, peers=with_peers and not quick
        ),
        "rest": lambda: bench_rest.measure(
            place("rest"), nvml, payload, window_s=5 if quick else 60, peers=with_peers and not quick
        ),
        "queue": lambda: bench_queue.measure(place("queue"), nvml, payload, quick=quick, peers=with_peers),
        "messages": lambda: bench_messages.measure(place("messages"), nvml, rounds=3 if quick else 14),
        "leases": lambda: _measure_leases(directory, quick=quick, with_peers=with_peers),
    }


def _measure_leases(directory: str, *, quick: bool, with_peers: bool) -> dict[str, Row]:
    """Run bench_leases.py where the peers' libraries can be imported."""
    words = ["--cycles", "2000", "--repeats", "100", "--hand-overs", "10"] if quick else []
    packages = []
    for name in ("gpu-gate", "reslock") if with_peers else ():
        place = f"{peers.cache_directory()}/{name}/lib"
        packages += (
            [f"{place}/{version}/site-packages" for version in os.listdir(place)] if os.path.isdir(place) else []
        )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(packages), "TMPDIR": directory}
    argv = [sys.executable, f"{ROOT}/benchmarks/bench_leases.py", "--json", *words]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=300, check=False)
    try:
        found: dict[str, Any] = json.loads(done.stdout)["results"]
    except ValueError as error:
        raise CannotMeasure(f"bench_leases.py ended with {done.returncode}: {done.stderr[-2000:]}") from error
    return {name: row if isinstance(row, dict) else {"note": row} for name, row in found.items()}


def _is_unsafe(results: Mapping[str, Mapping[str, Row]]) -> bool:
    """Whether something of ours was granted twice, or survived."""
    for rows in results.values():
        for name, row in rows.items():
            if name.startswith("holdfast") and (row.get("overlaps") or row.get("survivors")):
                return True
    return bool(results.get("leases", {}).get("storm", {}).get("doubles"))


def _describe_machine() -> dict[str, Any]:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    with open("/proc/meminfo", encoding="ascii") as file:
        memory_kib = int(file.readline().split()[1])
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", tempfile.gettempdir()], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "cpu": models[0] if models else os.uname().machine,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_kib / 1024**2),
        "kernel": os.uname().release,
        "python": ".".join(str(number) for number in sys.version_info[:3]),
        "filesystem": kind or "an unknown file system",
    }


def _commit() -> str:
    argv = ["git", "-C", ROOT, "describe", "--always", "--dirty"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def _write(record: Mapping[str, Any], *, docs: bool) -> None:
    os.makedirs(os.path.dirname(LATEST), exist_ok=True)
    with open(f"{LATEST}.new", "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
    os.replace(f"{LATEST}.new", LATEST)
    if docs:
        with open(DOCUMENT, encoding="utf-8") as file:
            document = report.replace_part(file.read(), report.markdown(record))
        with open(DOCUMENT, "w", encoding="utf-8") as file:
            file.write(document)


if __name__ == "__main__":
    sys.exit(main())
