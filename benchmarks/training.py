"""Measure holdfast.training and its peers side by side, and say which targets are met.

    python benchmarks/training.py                        everything, about ten minutes
    python benchmarks/training.py --quick                fewer rounds, two minutes; to see that it works
    python benchmarks/training.py --only pause,lost      some parts
    python benchmarks/training.py --peers-python PATH    the interpreter that has torch and the peers
    python benchmarks/training.py --install              make that environment under ~/.cache/holdfast-bench first
    python benchmarks/training.py --docs                 also write the tables into docs/benchmarks.md

Every method works in a fresh process on a state of its own, in turns; before each, it is waited (within bounds) until
nobody else uses the processors, and what others used meanwhile is stated. Results lie in
``benchmarks/results/training.json``. Nothing fails because of a time; the exit code is 1 if a part could not run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from typing import TYPE_CHECKING, Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Started as a program, so that the first place to import from is this directory; the root is where `benchmarks` is.
sys.path[0] = ROOT

from benchmarks import training_parts, training_report  # noqa: E402
from benchmarks.measuring import become_subreaper, end_descendants  # noqa: E402
from benchmarks.peers import cache_directory  # noqa: E402
from benchmarks.run import _commit as commit  # noqa: E402
from benchmarks.run import _describe_machine as describe_machine  # noqa: E402
from benchmarks.training_quiet import Quiet  # noqa: E402
from benchmarks.training_workers import WORK, Workshop, find_python  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.training_parts import Rows

LATEST = f"{ROOT}/benchmarks/results/training.json"
DOCUMENT = f"{ROOT}/docs/benchmarks.md"
PINS = ("numpy", "safetensors==0.8.0", "torchsnapshot==0.1.0", "orbax-checkpoint==0.12.8", "jax==0.10.2")
TORCH = "torch==2.13.0"


def main() -> int:
    """Measure, print, write."""
    options = _parse()
    become_subreaper()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was measured so far is still shown
    if options.install:
        _install()
    python = find_python(options.peers_python, cache_directory())
    libraries = _ask_versions(python)
    if libraries["torch"] == "not installed":
        sys.exit(f"bench: {python} has no torch; name one that has with --peers-python, or make one with --install")
    directory = tempfile.mkdtemp(prefix="holdfast-bench-training-", dir=options.directory)
    began, load_before = time.monotonic(), os.getloadavg()
    shop = Workshop(python, directory, Quiet(options.patience))
    results: dict[str, Rows] = {}
    broken = []
    try:
        for name, measure in _parts(shop, options).items():
            print(f"bench: {training_report.TITLES[name]} ...", file=sys.stderr, flush=True)
            try:
                results[name] = measure()
            except KeyboardInterrupt:
                broken.append(name)
                break
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
        "commit": commit(),
        "duration_s": round(time.monotonic() - began, 1),
        "waited_s": round(shop.quiet.waited_s, 1),
        "machine": describe_machine(),
        "libraries": libraries,
        "load_before": load_before,
        "others": {"p50": statistics.median(shop.others or [0.0]), "max": max(shop.others, default=0.0)},
        "results": results,
        "broken": broken,
    }
    _write(record, docs=options.docs)
    print(json.dumps(record, indent=1) if options.json else training_report.text(record))
    return 1 if broken else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", default="", help=f"some of {','.join(training_report.TITLES)}")
    parser.add_argument("--no-peers", action="store_true", help="only holdfast, and what it is compared with")
    parser.add_argument("--peers-python", help="the interpreter that has torch, numpy and the peers")
    parser.add_argument("--install", action="store_true", help="install the peers where they are looked for")
    parser.add_argument("--directory", help="where the checkpoints go (default: the temporary directory)")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for quiet, in all")
    parser.add_argument("--json", action="store_true", help="print the record")
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/benchmarks.md")
    options = parser.parse_args()
    options.only = [name for name in options.only.split(",") if name]
    unknown = [name for name in options.only if name not in training_report.TITLES]
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; parts are {', '.join(training_report.TITLES)}")
    return options


def _parts(shop: Workshop, options: argparse.Namespace) -> dict[str, Callable[[], Rows]]:
    """The parts that are wanted, ready to be called."""
    quick = options.quick
    peers = training_parts.PEERS if not options.no_peers else ("safetensors",)
    asynchronous = [peer for peer in peers if peer not in ("torch.save", "safetensors", "dcp")]
    few = [peer for peer in ("torch.save", "dcp-thread") if peer in peers]
    parts: dict[str, Callable[[], Rows]] = {
        "pause": lambda: training_parts.pause(
            shop, "500", rounds=1 if quick else 3, saves=3 if quick else 4, peers=peers
        ),
        "pause-2000": lambda: training_parts.pause(shop, "2000", rounds=1, saves=4, peers=peers),
        "pause-many": lambda: training_parts.pause(
            shop, "many", rounds=1, saves=3 if quick else 5, peers=[] if quick else ["safetensors", *few]
        ),
        "lost": lambda: training_parts.lost(
            shop, rounds=1, saves=2 if quick else 6, peers=few[1:] if quick else [*few[:1], *asynchronous]
        ),
        "memory": lambda: training_parts.memory(shop, peers=few if quick else peers),
        "load": lambda: training_parts.load(shop, rounds=2 if quick else 5, peers=peers),
        "imports": lambda: training_parts.imports(shop, rounds=5 if quick else 21),
        "steps": lambda: training_parts.steps(shop, seconds=3 if quick else 10),
    }
    left_out = ("pause-2000",) if quick else ()
    return {
        name: part
        for name, part in parts.items()
        if name in options.only or (not options.only and name not in left_out)
    }


def _install() -> None:
    """An environment with torch and the peers; one that does not install is later said to be missing."""
    place = f"{cache_directory()}/training"
    there = f"{place}/bin/python"
    if os.path.exists(there) and "not installed" not in _ask_versions(there).values():
        return
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    pip = [f"{place}/bin/python", "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
    for pin in (TORCH, *PINS):
        # Each with torch's version named again: no peer may bring another one.
        if subprocess.run([*pip, pin, TORCH], check=False).returncode:
            print(f"bench: {pin} does not install", file=sys.stderr)


def _ask_versions(python: str) -> dict[str, str]:
    done = subprocess.run([python, WORK, "versions", "-", "-", "-"], capture_output=True, text=True, check=False)
    try:
        found: dict[str, str] = json.loads(done.stdout)
    except ValueError:
        sys.exit(f"bench: {python} cannot be used: {done.stderr.strip()[-500:]}")
    return found


def _write(record: Mapping[str, Any], *, docs: bool) -> None:
    os.makedirs(os.path.dirname(LATEST), exist_ok=True)
    with open(f"{LATEST}.new", "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
    os.replace(f"{LATEST}.new", LATEST)
    if docs:
        with open(DOCUMENT, encoding="utf-8") as file:
            document = training_report.replace_part(file.read(), training_report.markdown(record))
        with open(DOCUMENT, "w", encoding="utf-8") as file:
            file.write(document)


if __name__ == "__main__":
    sys.exit(main())
