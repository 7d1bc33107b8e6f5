"""Killing one process of a run just before its n-th call that changes something, and judging what is left.

`Killer` preloads a small library (``kill_at.c``) into a supervisor (the first, a successor, that of a retry or of a
restart), the keeper or a command line (run, stop, restart, rm). What is left must be put in line by `reconcile`, and
then nothing may be missing: `find_faults` lists what is. The queue's worker is killed in `killing_queue`.
"""

from __future__ import annotations

import glob
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.agent import kept_environment, launch
from holdfast.agent.control.adopt import adopt
from holdfast.agent.control.results.copy import copy_run, read_record
from holdfast.agent.patrol.reconcile import ReconcileReport, reconcile
from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.retries import read_retry
from holdfast.core.recorded_environment import restore_recorded
from holdfast.host.files import files
from holdfast.host.files.copies.proven import prove_all
from holdfast.model import wire
from holdfast.model.errors import NotCopied
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import GpuOptions, IsolationLevel, Results, Retries
from holdfast.model.results import ROSTER
from holdfast.model.run import CopyState, Created, Ended, RunState
from tests.agent.driving import Driven
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.agent.driving import Drive

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kill_at.c")
FRONT_NAME = "killed-front"
"""By this name of its run the library knows the command line."""
ONCE = 'echo x >> "$HOLDFAST_ARTIFACT_DIR/ran-$HOLDFAST_ATTEMPT"; '
BLIP = (
    'echo x >> "$HOLDFAST_ARTIFACT_DIR/tries"; test $(wc -l < "$HOLDFAST_ARTIFACT_DIR/tries") -gt 1 && exit 0; '
    "echo 'wandb.errors.CommError: Run initialization has timed out after 90.0 sec.' >&2; exit 1"
)
STAY = "{ echo ready; exec sleep 600; }"
CARD = (("gpus", GpuRequest(count=1)), ("gpu", GpuOptions(idle_window_s=0.0, wait_s=60.0)))
OLD = "2020-01-01T00:00:00.000Z"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A job, the code of its last attempt, and how many attempts there are when nobody is killed."""

    command: tuple[str, ...]
    code: int
    attempts: int = 1
    fields: tuple[tuple[str, Any], ...] = ()
    copies: bool = False
    """Whether its results are copied to a directory of the test's."""
    verb: str = ""
    """What a person types once the job is there (`lives`) or the run is over."""
    lives: bool = False
    earlier: int = 1
    """The code of the attempts before the last."""


SCENARIOS = {
    "succeeds": Scenario(("sh", "-c", f"{ONCE}echo the last words"), 0),
    "fails": Scenario(("sh", "-c", f"{ONCE}echo 'ValueError: bad' >&2; exit 3"), 3),
    "transient": Scenario(("sh", "-c", ONCE + BLIP), 0, 2, (("retries", Retries(max=1, wait_s=0.01)),)),
    "copies": Scenario(("sh", "-c", f"{ONCE}echo 42 > $HOLDFAST_ARTIFACT_DIR/answer"), 0, copies=True),
    "card": Scenario(("sh", "-c", f"{ONCE}exit 5"), 5, fields=CARD),
    "stopped": Scenario(("sh", "-c", ONCE + STAY), 130, fields=CARD, verb="stop", lives=True),
    "restarted": Scenario(
        ("sh", "-c", f"{ONCE}test $HOLDFAST_ATTEMPT -gt 1 || {STAY}"), 0, 2, verb="restart", lives=True, earlier=130
    ),
    "again": Scenario(("sh", "-c", f"{ONCE}exit 3"), 3, 2, verb="restart", earlier=3),
    "removed": Scenario(("sh", "-c", f"{ONCE}exit 3"), 3, verb="rm"),
    "refused": Scenario(("true",), 78, 1, (("inputs", ("/nowhere/at/all",)),)),
}


VICTIMS = {
    **dict.fromkeys(("succeeds", "fails"), ("supervisor", "keeper", "front", "successor")),
    "card": ("supervisor", "keeper", "successor"),
    "transient": ("supervisor", "keeper", "front", "successor", "retry"),
    "copies": ("supervisor", "keeper", "copier", "successor"),
    "stopped": ("supervisor", "keeper", "front", "successor"),
    "restarted": ("supervisor", "keeper", "front", "restarted"),
    "again": ("front", "restarted"),
    "removed": ("front",),
    "refused": ("supervisor", "successor"),
}
"""Who can be killed in which scenario; a supervisor before its successor."""


def build_library(directory: Path) -> str:
    """Compile it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "no C compiler: install gcc and libc6-dev"
    made = str(directory / "kill_at.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, SOURCE, "-ldl"], check=True)
    return made


@dataclass(frozen=True, slots=True)
class Killer:
    """Starts runs of which one process is killed."""

    drive: Drive
    library: str

    @property
    def _seen(self) -> str:
        return f"{os.path.dirname(self.library)}/seen"

    def has_killed(self) -> bool:
        """Whether the process that is to be killed came to that call."""
        return os.path.getsize(self._seen) > 0

    def environ(self, who: str, at: int, count: str = "") -> dict[str, str]:
        """What makes a process die at its n-th call; 0: never. `count` is a file that grows with each call."""
        files.remove_quietly(self._seen)
        told = {"LD_PRELOAD": self.library, "KILL_WHO": who, "KILL_AT": str(at), "KILL_SEEN": self._seen}
        told["HOLDFAST_SIMULATED_GPUS"] = "4"
        return {**told, "KILL_COUNT": count} if count else told

    def start(self, who: str, scenario: Scenario, at: int, count: str = "", before: int = 0) -> Driven | None:
        """The run when nothing of it goes on by itself any more; None when there is no attempt.

        `before` is the step at which the first supervisor is killed: where `who` is its successor, or, whichever step,
        before a verb is typed.
        """
        environ = self.environ("supervisor" if who == "successor" else who, before if who == "successor" else at, count)
        fields = {"containment": IsolationLevel.SUBREAPER, **dict(scenario.fields)}
        if scenario.copies:
            fields["results"] = Results(to=f"{os.path.dirname(self.library)}/lasting", wait_s=0.01)
        if scenario.verb:
            return self._type(who, scenario, self.environ(who, at, count), fields, orphaned=bool(before))
        if who == "front":
            return self._start_by_command(scenario, environ)
        if who == "successor":
            environ.pop("KILL_COUNT", None)
        run = self.drive(*scenario.command, environ=environ, **fields)
        if who != "retry":
            wait_until(lambda: os.path.exists(environ["KILL_SEEN"]), what="the supervisor is there")
        else:
            wait_until(run.supervisor, what="the first supervisor is there")
        self._wait_still(run)
        if who == "successor":
            self._succeed(run, self.environ(who, at, count))
        return run

    def _succeed(self, run: Driven, environ: Mapping[str, str]) -> None:
        """Give it a supervisor that is killed, as `reconcile` or `adopt` would."""
        view = observe_run(run.run_dir)
        if view.over or view.attempt == 0:
            return
        known = {**restore_recorded(view.record, self.drive.environ), **environ}
        launch.start_supervisor(run.run_dir, view.attempt, environ=known, reason="adopt")
        wait_until(lambda: os.path.exists(environ["KILL_SEEN"]), what="the successor is there")
        self._wait_unattended(run)

    def _type(
        self, who: str, scenario: Scenario, environ: Mapping[str, str], fields: Mapping[str, Any], *, orphaned: bool
    ) -> Driven:
        """A run, and the verb of the scenario, of which the supervisor, the keeper or the command line is killed."""
        begun = f"{os.path.dirname(self.library)}/begun"
        files.remove_quietly(begun)
        # Of those that were there before the verb no step is taken before it.
        early = {**environ, "KILL_FROM": begun} if who in ("supervisor", "keeper") else {}
        given = {"HOLDFAST_SIMULATED_GPUS": environ["HOLDFAST_SIMULATED_GPUS"], **early}
        run = self.drive(*scenario.command, name=FRONT_NAME, environ=given, **fields)
        if scenario.lives:
            run.ready()
        else:
            run.ended()
            self._wait_still(run)
        Path(begun).touch()
        if orphaned and scenario.lives:
            run.kill_supervisor()
        if who == "successor":
            run.ask()
            self._succeed(run, environ)
        else:
            self.type(scenario.verb, run, {} if early else environ)
        wait_until(lambda: self._is_unasked(run) or not is_busy(run.run_dir, jobs=False), what=f"{run.run_id} is left")
        if self._is_unasked(run):
            # The command was killed before it had asked: a person asks again.
            self.type("stop", run)
            self._wait_unattended(run)
        return run

    def _is_unasked(self, run: Driven) -> bool:
        """Whether it lives on as if nobody had typed anything."""
        if not os.path.exists(run.run_dir):
            return False
        view = observe_run(run.run_dir)
        return view.attempt == 1 and not view.over and view.desired is None

    def type(self, verb: str, run: Driven, environ: Mapping[str, str] | None = None) -> int:
        """Type a verb about a run; its exit code."""
        # Whoever is killed is not waited for: what is left undone is what this is about.
        words = ["--yes"] if verb == "rm" else ["--wait", "3s"]
        command = [sys.executable, "-m", "holdfast", verb, *words, run.run_id]
        known = {**self.drive.environ, **(environ or {})}
        return subprocess.run(command, env=known, cwd=self.drive.workdir, check=False, capture_output=True).returncode

    def _wait_unattended(self, run: Driven) -> None:
        """Until no supervisor and no command is at it; keeper and job may live."""
        wait_until(lambda: not is_busy(run.run_dir, jobs=False), what=f"{run.run_id} is unattended")

    def _wait_still(self, run: Driven) -> None:
        wait_until(lambda: not is_busy(run.run_dir, self.library), what=f"{run.run_id} stands still")

    def _start_by_command(self, scenario: Scenario, environ: Mapping[str, str]) -> Driven | None:
        before = set(os.listdir(self.drive.root)) if os.path.isdir(self.drive.root) else set()
        command = [sys.executable, "-m", "holdfast", "run", "--name", FRONT_NAME, "--", *scenario.command]
        subprocess.run(
            command, env={**self.drive.environ, **environ}, cwd=self.drive.workdir, check=False, capture_output=True
        )
        made = [name for name in set(os.listdir(self.drive.root)) - before if not name.startswith(".")]
        if not made:
            return None
        run = Driven(f"{self.drive.root}/{made[0]}", made[0], self.drive.environ)
        self.drive.runs.append(run)
        self._wait_still(run)
        return run if os.path.exists(run.path(wire.STATE)) else None


def is_busy(run_dir: str, library: str = "/", *, jobs: bool = True) -> bool:
    """Whether any process names the run in its command line, carries its marker, or was started with the library.

    Without `jobs` the keeper and what carries the marker do not count. One that was killed gives its memory back before
    its files: its words are gone while it holds the run's lock still.
    """
    name = os.path.basename(run_dir).encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            if name in Path("/proc", entry, "cmdline").read_bytes() and (jobs or not _is_keeper(entry)):
                return True
            environ = Path("/proc", entry, "environ").read_bytes().split(b"\0") if jobs else []
            if b"HOLDFAST_RUN_ID=" + name in environ or b"LD_PRELOAD=" + library.encode() in environ:
                return True
        except OSError:
            continue
    return files.is_locked(f"{run_dir}/{wire.SUPERVISOR_LOCK}") is True


def _is_keeper(pid: str) -> bool:
    return Path("/proc", pid, "comm").read_text() == "holdfast-keeper\n"


def settle(run: Driven, *, adopting: bool = False) -> list[ReconcileReport]:
    """Call `reconcile` until it finds nothing more, as a person would; two minutes (`UNTAKEN_S`) and the hour after
    which a temporary is nobody's (`STALE_S`) have passed.

    What could not be looked at in time, on a busy machine, is looked at again. All reports, in order. With `adopting`
    the run is adopted before, unless it is over.
    """
    reports = []
    if adopting and os.path.exists(run.run_dir) and not observe_run(run.run_dir).over:
        adopt(run.run_dir, environ=run.environ)
        wait_until(lambda: not is_busy(run.run_dir), what=f"{run.run_id} stands still after its adoption")
    for _ in range(8):
        _age(run)
        done = reconcile([os.path.dirname(run.run_dir)])
        reports.append(done)
        wait_until(lambda: not is_busy(run.run_dir), what=f"{run.run_id} stands still after reconcile")
        if not done.repairs and not done.unread:
            break
    return reports


def _age(run: Driven) -> None:
    for path in _list_hidden(run):
        os.utime(path, (0, 0))
    for path in glob.glob(f"{run.run_dir}/{wire.ATTEMPTS}/*/{wire.STATE}"):
        state = wire.from_bytes(RunState, files.read_bytes(path), wire.STATE)
        if isinstance(state.state, Created) and state.supervisor is None:
            value = json.loads(Path(path).read_text())
            Path(path).write_text(json.dumps({**value, "created_at": OLD}))


def find_faults(run: Driven, scenario: Scenario) -> list[str]:
    """What is wrong with the records of a run that was put in line; empty when nothing is."""
    faults = [f"{path} was left" for path in _list_hidden(run)]
    leases = run.environ["HOLDFAST_LEASE_DIR"]
    faults += [f"{path} is held" for path in glob.glob(f"{leases}/lease-*.json")]
    if scenario.verb == "rm" and not os.path.exists(run.run_dir):
        return [*faults, *_find_kept(run)]
    view = observe_run(run.run_dir)
    for attempt in view.attempts:
        faults += [f"attempt {attempt}: {words}" for words in _judge_attempt(run.run_dir, attempt, scenario)]
    if not view.over:
        faults.append(f"it is {view.condition}: {view.note}")
    faults += _find_kept(run)
    last, due = view.end, scenario.attempts == 1 or len(view.attempts) == scenario.attempts
    codes = (scenario.code, NotCopied.exit_code) if scenario.copies else (scenario.code,)
    if last is not None and due and last.started_at is not None and last.exit_code not in codes:
        faults.append(f"its exit code is {last.exit_code}, not {scenario.code}")
    faults += _judge_copy(run, scenario) if scenario.copies else []
    decided = read_retry(run.run_dir, 1)
    if decided and not decided["retry"] and decided["why"] != "no supervisor saw it end":
        faults.append(f"the attempt that was to follow did not: {decided}")
    return faults


def _list_hidden(run: Driven) -> list[str]:
    """What a command or a supervisor that was killed was about to give a name, or to remove."""
    return glob.glob(f"{os.path.dirname(run.run_dir)}/.*") + glob.glob(f"{run.run_dir}/**/.*", recursive=True)


def _find_kept(run: Driven) -> list[str]:
    """What is left of it outside of its directory."""
    groups = glob.glob(f"/sys/fs/cgroup/**/holdfast/{run.run_id}.*", recursive=True)
    kept = kept_environment.read_kept(run.run_id) is not None
    return [*(f"its control group {path} is there" for path in groups), *(["its environment is kept"] if kept else [])]


def _judge_copy(run: Driven, scenario: Scenario) -> list[str]:
    """A copy is called done only when all of it is there; one that is not fails the run, and can be made good."""
    view = observe_run(run.run_dir)
    if view.end is None or view.end.status is None or view.end.status.code != scenario.code:
        return []
    said = read_record(run.run_dir, view.attempt)
    if said is None or (view.condition == "succeeded") != (said.state is CopyState.COPIED):
        return [f"it is {view.condition}, and its copy {said}"]
    done = copy_run(run.run_dir, None, lambda _: None)
    found = read_record(run.run_dir, view.attempt)
    assert found is not None
    names = [file.path for file in found.files]
    faults = [] if len(names) == 2 and done.exit_code == 0 else [f"it was not made good: {done}"]
    faults += prove_all(found.files, found.to)
    there = {os.path.join(top, name) for top, _, files in os.walk(found.to) for name in files}
    left = there - {f"{found.to}/{name}" for name in (*names, ROSTER)}
    return [
        *faults,
        *(f"{name} was left" for name in left),
        *([] if observe_run(run.run_dir).exit_code == 0 else ["no"]),
    ]


def _judge_attempt(run_dir: str, attempt: int, scenario: Scenario) -> list[str]:
    faults: list[str] = []
    where = Path(wire.attempt_dir(run_dir, attempt))

    def read(name: str) -> dict[str, Any]:
        try:
            return wire.parse_object((where / name).read_bytes(), name)
        except (OSError, wire.WireError) as error:
            faults.append(f"{name}: {error}")
            return {}

    state = wire.decode(RunState, read(wire.STATE), wire.STATE).state
    record = read(wire.EXIT)
    if not isinstance(state, Ended):
        return [*faults, f"it is {type(state).__name__}"]
    if (record.get("outcome"), record.get("exit_code")) != (state.outcome.value, state.exit_code):
        faults.append("state and exit record differ")
    if state.outcome.value != "succeeded":
        read(wire.VERDICT)
        faults += [] if (where / wire.FAILURE).exists() else ["there is no failure note"]
    if (where / wire.MANIFEST).exists() and "outcome" not in read(wire.MANIFEST):
        faults.append("the manifest is not completed")
    if record.get("failure_class") == "transient" and read(wire.RETRY).get("retry"):
        faults += [] if Path(wire.attempt_dir(run_dir, attempt + 1)).exists() else ["no attempt follows"]
    ran = Path(run_dir, wire.ARTIFACTS, f"ran-{attempt}")
    if ran.exists() and ran.read_text() != "x\n":
        faults.append("the job was started twice")
    codes = (
        scenario.code,
        *((NotCopied.exit_code,) if scenario.copies else ()),
        *((scenario.earlier,) if scenario.attempts > 1 else ()),
    )
    if ran.exists() and state.exit_code not in codes:
        faults.append(f"its job ran, and its exit code is {state.exit_code}")
    numbers = [json.loads(line).get("seq") for line in files.read_last_lines(str(where / wire.EVENTS))]
    if numbers != list(range(1, len(numbers) + 1)):
        faults.append(f"its events are numbered {numbers}")
    return faults


def count_calls(killer: Killer, who: str, scenario: Scenario, directory: Path, before: int = 0) -> int:
    """How many calls that change something a process of such a run makes."""
    count = directory / "count"
    files.remove_quietly(str(count))
    killer.start(who, scenario, 0, str(count), before)
    return count.stat().st_size if count.exists() else 0


def list_before(who: str, scenario: Scenario, first: int) -> tuple[int, ...]:
    """Before which steps, of `first`, a first supervisor is killed in a campaign; see `Killer.start`."""
    if scenario.verb:
        return (1,) if who == "successor" else (0, 1) if who == "front" and scenario.lives else (0,)
    return tuple(sorted(random.sample(range(1, first), 3))) if who == "successor" else (0,)
