"""What the guard itself does to a run that is under way: signals, neighbours, an edit, a change of the card."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.host.contain import create
from holdfast.host.process import pidfd
from holdfast.model import wire
from holdfast.model.identity import ProcessId
from holdfast.model.job import Limits

from .jobs import PACKAGE
from .spec import Fault, FaultAct

if TYPE_CHECKING:
    from .box import Sandbox
    from .cards import PretendedCard
    from .stages import Staging

NEIGHBOUR_BYTES = 128 << 20
NEIGHBOUR_S = 20.0
STOP_S = 30.0
SPINNERS_PER_CPU = 3


class Actor:
    """Does the act of one fault."""

    def __init__(self, fault: Fault, box: Sandbox, staging: Staging, card: PretendedCard | None) -> None:
        self._fault, self._box, self._staging, self._card = fault, box, staging, card

    def act(self) -> None:
        """Do it.

        Raises:
            StageFailed: a file system could not be frozen.
            TookTooLong, Abandoned: as `Sandbox.wait`.
        """
        deeds: dict[FaultAct, Callable[[], None]] = {
            FaultAct.KILL_JOB: lambda: self._signal_job(signal.SIGKILL),
            FaultAct.TERM_JOB: lambda: self._signal_job(signal.SIGTERM),
            FaultAct.STOP_JOB: lambda: self._signal_job(signal.SIGSTOP),
            FaultAct.ASK_STOP: self._ask_stop,
            FaultAct.KILL_KEEPERS: self._kill_keepers,
            FaultAct.NEIGHBOUR_OOM: self._starve_neighbour,
            FaultAct.NEIGHBOURS: self._start_neighbours,
            FaultAct.FREEZE: self._staging.freeze,
            FaultAct.EDIT_SCRIPT: self._edit_script,
            FaultAct.CARD: self._change_card,
        }
        deeds[self._fault.act]()
        # The job waits for this file where it must not go on before the act.
        with open(f"{self._box.directory}/acted", "w", encoding="utf-8"):
            pass

    def _signal_job(self, number: int) -> None:
        job = self._box.job()
        if job is not None:
            pidfd.send_signal(job, number)

    def _ask_stop(self) -> None:
        self._box.call("stop", "--reason", "a rehearsed fault", self._box.run_id, limit_s=STOP_S)

    def _kill_keepers(self) -> None:
        """Both who stand over the job: the supervisor first, so that it cannot tell how the keeper went."""
        state = self._box.read(wire.STATE)
        for value in (state.get("supervisor"), (state.get("state") or {}).get("keeper")):
            if value is not None:
                pidfd.send_signal(wire.decode(ProcessId, value), signal.SIGKILL)

    def _starve_neighbour(self) -> None:
        """The kernel kills in a group beside the run's, and then somebody kills the run."""
        group = create.create_group(f"{self._box.run_id}.neighbour", Limits(memory_bytes=NEIGHBOUR_BYTES))
        if group is None:
            raise OSError("no control group can be made for a neighbour")
        try:
            self._wait_for_kill(group)
        finally:
            group.remove()
        self._signal_job(signal.SIGKILL)

    def _wait_for_kill(self, group: create.ControlGroup) -> None:
        words = [sys.executable, "-m", f"{PACKAGE}.memory", "neighbour"]
        with open(os.devnull, "r+b") as null:
            child = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=null, stderr=null, env=self._box.environ, cwd="/"
            )
        try:
            group.add(child.pid)
            assert child.stdin is not None
            child.stdin.close()
            self._box.wait(lambda: child.poll() is not None, NEIGHBOUR_S, "the end of the neighbour")
        finally:
            child.kill()
            child.wait()
        if child.returncode == -signal.SIGKILL:
            with open(f"{self._box.directory}/marks", "a", encoding="utf-8") as file:
                file.write("neighbour-killed\n")

    def _start_neighbours(self) -> None:
        """Processes beside the run that use every CPU; they end with the sandbox."""
        words = [sys.executable, "-m", f"{PACKAGE}.slow", "neighbour"]
        for _ in range(SPINNERS_PER_CPU * len(os.sched_getaffinity(0))):
            # Each in a session of its own, as other people's jobs are: the scheduler shares the CPUs fairly between
            # sessions, so that a crowd in one of them would take no more than one (sched(7), autogroup).
            subprocess.Popen(words, stdin=subprocess.DEVNULL, env=self._box.environ, cwd="/", start_new_session=True)

    def _edit_script(self) -> None:
        """In place, the way in which an editor does that keeps the file."""
        with open(f"{self._box.directory}/script.sh", "r+", encoding="utf-8") as file:
            text = file.read().replace("exit 0", "exit 9")
            file.seek(0)
            file.write(text)

    def _change_card(self) -> None:
        assert self._card is not None
        self._card.write(self._fault.card_before, self._fault.card_after)
