"""Starting one measuring process (``peers_training/work.py``) for each method and round, and hearing what it says."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.measuring import descendants
from benchmarks.training_quiet import Others, Quiet

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORK = f"{ROOT}/benchmarks/peers_training/work.py"
TIMEOUT_S = 180.0
LOOK_S = 0.02
"""How often memory is looked at while a state is saved."""


@dataclass(slots=True)
class Heard:
    """What one process said: a list of objects, or why there is none; what others used of the processors meanwhile."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""
    others: float = 0.0

    def values(self, key: str, *, first: bool | None = None) -> list[float]:
        """The numbers under `key`; with `first`, only those of the first save, or only those of the later ones."""
        return [
            float(line[key])
            for line in self.lines
            if key in line and (first is None or line.get("first", False) is first)
        ]


@dataclass(slots=True)
class Workshop:
    """Where processes are started: the interpreter with the peers, a directory on the disk in question, the gate."""

    python: str
    directory: str
    quiet: Quiet
    others: list[float] = field(default_factory=list)

    def run(self, what: str, method: str, size: str, saves: int) -> Heard:
        """One process from its start to its end, in an empty directory."""
        return self._with_place(what, method, size, saves, watch_memory=False)

    def run_for_memory(self, method: str, size: str) -> Heard:
        """As `run`, while the memory of its processes is looked at: adds ``baseline``, ``held``, ``peak`` in bytes."""
        return self._with_place("memory", method, size, 3, watch_memory=True)

    def _with_place(self, what: str, method: str, size: str, saves: int, *, watch_memory: bool) -> Heard:
        place = f"{self.directory}/work"
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place)
        os.sync()
        self.quiet.wait()
        others, began = Others(), time.monotonic()
        before = _children_cpu_s()
        argv = [self.python, WORK, what, method, size, place, "--saves", str(saves)]
        heard = _talk(argv, watch_memory=watch_memory)
        heard.others = others.used(_children_cpu_s() - before)
        self.others.append(heard.others)
        words = heard.note or f"others used {heard.others:.2f} processors"
        print(
            f"bench:   {what} {method} {size}: {time.monotonic() - began:.1f} s, {words}", file=sys.stderr, flush=True
        )
        shutil.rmtree(place, ignore_errors=True)
        return heard


def _children_cpu_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _environment() -> dict[str, str]:
    """Nobody else's settings; what the libraries say belongs to a log."""
    kept = {
        name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ
    }
    return {**kept, "PYTHONWARNINGS": "ignore", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}


def _talk(argv: list[str], *, watch_memory: bool) -> Heard:
    heard = Heard()
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=_environment(),
                start_new_session=True,
            )
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        guard = threading.Timer(TIMEOUT_S, process.kill)
        guard.start()
        stack.callback(guard.cancel)
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.extend(process.stderr or []), daemon=True)
        reader.start()
        watch: _Memory | None = None
        for line in process.stdout:
            if not line.startswith("{"):
                continue  # some libraries print
            said = json.loads(line)
            heard.lines.append(said)
            if watch_memory and said.get("ready"):
                watch = _Memory()
                watch.start()
                _nod(process)
            elif watch is not None and said.get("done"):
                heard.lines.append(watch.stop())
                _nod(process)
        code = process.wait()
        reader.join(1.0)
    note = next((str(line["note"]) for line in heard.lines if "note" in line), "")
    if not note and code:
        note = f"ended with {code}: {' '.join(''.join(errors).split())[-200:]}"
    heard.note = note
    return heard


def _nod(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write("\n")
        process.stdin.flush()


class _Memory(threading.Thread):
    """Looks at the memory of all descendants again and again."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._over = threading.Event()
        self.baseline = _memory()
        self.peak = self.baseline

    def run(self) -> None:
        """Until `stop`."""
        while not self._over.wait(LOOK_S):
            self.peak = max(self.peak, _memory())

    def stop(self) -> dict[str, Any]:
        """End; answers bytes: before the method was made, when its saves are over, and the most in between."""
        self._over.set()
        self.join()
        held = _memory()
        return {"baseline": self.baseline, "held": held, "peak": max(self.peak, held)}


def _memory() -> int:
    """Bytes of all descendants: what is theirs alone, libraries in shares, and shared memory once.

    Of shared memory the largest mapping counts: the shares of two processes, read one after the other while the second
    one maps it, would add up to more than there is.
    """
    own_kib, shared_kib = 0, 0
    for pid in descendants():
        try:
            with open(f"/proc/{pid}/smaps_rollup", encoding="ascii", errors="replace") as file:
                lines = file.readlines()
            with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
                lines += file.readlines()
        except OSError:
            continue  # it has ended
        found = {line.partition(":")[0]: line.split()[1] for line in lines if ":" in line and len(line.split()) == 3}
        own_kib += sum(int(found.get(name, 0)) for name in ("Pss_Anon", "Pss_File"))
        shared_kib = max(shared_kib, int(found.get("RssShmem", 0)))
    return (own_kib + shared_kib) * 1024


def copy_raw(directory: str, nbytes: int, quiet: Quiet) -> float:
    """Seconds that dd takes for as many zeros until they are on the disk."""
    path = f"{directory}/raw"
    os.sync()
    quiet.wait()
    began = time.perf_counter()
    argv = ["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={round(nbytes / (1 << 20))}", "conv=fsync"]
    subprocess.run(argv, check=True, stderr=subprocess.DEVNULL)
    took = time.perf_counter() - began
    os.unlink(path)
    return took


def find_python(given: str | None, cache: str) -> str:
    """The interpreter whose environment has the peers: the one that was named, the cached one, else this one."""
    if given:
        return given
    cached = f"{cache}/training/bin/python"
    return cached if os.path.exists(cached) else sys.executable
