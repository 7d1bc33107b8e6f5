"""The entry ``slurm-node``: one node of a run over several, which is not the first. srun starts it once on each.

Words: ``--run RUN_DIR --attempt N -- COMMAND...``. It says what node it is, runs the command when its leader says so,
writes the command's output to ``attempts/N/nodes/K/output.log`` and nothing else, and ends with its leader: it retries
nothing and decides nothing, and what Slurm's TERM means is its leader's to find out. How the command ended goes to the
leader with the last lines of the output.

Two processes, each of which ends all that is left when the other is killed: with proctrack/linuxproc Slurm loses sight
of a process whose parents are gone.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from typing import Any

from holdfast.core.slurm.nodes import LINK, build_member_environ
from holdfast.host.clock import monotonic_s
from holdfast.host.files import files
from holdfast.host.job.output import OutputFile
from holdfast.host.process import libc
from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.nodes import NODES_DIR

from .command import Command, as_code, install_wakeup, read_wakeup
from .facts import read_node
from .link import SEND_WITHIN_S, Link
from .words import Words, read_words

BEAT_S = 5.0
REST_WITHIN_S = 1.0
"""For the rest of the output once all below us is gone: whoever else has its pipe open may have it so for ever."""
TAIL_BYTES = 8192
EXIT_ALONE = 69


def main(words: list[str]) -> int:
    """Be the entry ``slurm-node``; 0 once its leader knows how the command ended."""
    call = read_words("slurm-node", words)
    wakeup, rest, guard = install_wakeup(), Command(), os.getpid()
    pid = os.fork()
    if pid:
        return _guard(pid, wakeup, rest)
    libc.set_parent_death_signal(signal.SIGHUP)
    if os.getppid() != guard:
        return EXIT_ALONE
    address, port, token = os.environ.pop(LINK).split()
    node = int(os.environ["SLURM_PROCID"]) + 1
    link = Link(socket.create_connection((address, int(port)), SEND_WITHIN_S))
    facts = read_node(call.run_dir, call.command, os.environ)
    link.send(token=token, node=node, facts=wire.encode(facts))
    # What is said from here on is the leader's to say: srun passes nothing on any more.
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    member = _Member(call, node, link)
    return member.run()


def _guard(pid: int, wakeup: int, rest: Command) -> int:
    """Heed no signal, and leave nothing behind when the member has ended, which is our child."""
    while True:
        select.select((wakeup,), (), ())
        read_wakeup(wakeup)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            rest.kill()
            return as_code(os.waitstatus_to_exitcode(status))


class _Member:
    """The life of a member."""

    def __init__(self, call: Words, node: int, link: Link) -> None:
        self._call, self._node, self._link = call, node, link
        self._command = Command()
        self._wakeup = install_wakeup()
        self._output: OutputFile | None = None
        self._pipe = -1
        self._path = ""
        self._asked = self._signals_all = False
        self._kill_at_s: float | None = None
        self._beat_at_s = monotonic_s()

    def run(self) -> int:
        """Until the command has ended, or the leader has."""
        while True:
            pipe = () if self._pipe < 0 else (self._pipe,)
            ready, _, _ = select.select((self._link, self._wakeup, *pipe), (), (), BEAT_S)
            if self._pipe in ready:
                self._take_output()
            numbers = read_wakeup(self._wakeup)
            self._hear(numbers)
            if self._link in ready or signal.SIGHUP in numbers:
                messages = None if signal.SIGHUP in numbers else self._link.receive()
                if messages is None:
                    # Nobody is left to save for: the leader's own grace is over, or it was killed.
                    self._command.kill()
                    return EXIT_ALONE
                for message in messages:
                    self._obey(message)
            if self._kill_at_s is not None and monotonic_s() >= self._kill_at_s:
                self._command.kill()
            if self._command.status is not None:
                return self._tell_end(self._command.status)
            if monotonic_s() >= self._beat_at_s:
                self._beat_at_s = monotonic_s() + BEAT_S
                self._link.send(beat=True)

    def _obey(self, message: dict[str, Any]) -> None:
        if message.get("do") == "go":
            self._start(message)
        elif message.get("do") in ("term", "end"):
            self._ask()
            if message.get("do") == "end":
                self._kill_at_s = monotonic_s() + float(message["within_s"])

    def _start(self, message: dict[str, Any]) -> None:
        self._signals_all = bool(message["signals_all"])
        directory = f"{wire.attempt_dir(self._call.run_dir, self._call.attempt)}/{NODES_DIR}/{self._node}"
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self._path = f"{directory}/{wire.OUTPUT}"
        path = f"{self._call.run_dir}/{wire.RUN}"
        job = wire.decode(JobSpec, wire.parse_object(files.read_bytes(path), path)["job"], path)
        self._output = OutputFile(self._path, job.output_max_bytes)
        self._pipe, theirs = os.pipe2(os.O_CLOEXEC)
        environ = build_member_environ(os.environ, message["job"], self._node)
        self._command.start(self._call.command, environ, theirs)
        os.close(theirs)

    def _hear(self, numbers: bytes) -> None:
        if signal.SIGCHLD in numbers:
            self._command.reap()
        if signal.SIGTERM in numbers and self._signals_all:
            self._asked = True

    def _ask(self) -> None:
        """Ask the command to leave, once: Slurm may have done so."""
        if not self._asked and self._command.lives:
            self._command.terminate()
        self._asked = True

    def _take_output(self) -> None:
        data = os.read(self._pipe, 1 << 16)
        if data and self._output is not None:
            self._output.write(data)
        elif not data:
            os.close(self._pipe)
            self._pipe = -1

    def _tell_end(self, status: int) -> int:
        self._command.kill()
        while self._pipe >= 0 and select.select((self._pipe,), (), (), REST_WITHIN_S)[0]:
            self._take_output()
        tail = b""
        if self._output is not None:
            self._output.close()
            tail = files.read_tail(self._path, TAIL_BYTES)
        self._link.send(ended=status, tail=tail.decode("utf-8", "replace"))
        self._link.close()
        return 0
