"""The entry ``slurm-lead``: what a run over several nodes executes on its first node, in place of the command.

Words: ``--run RUN_DIR --attempt N -- COMMAND...``. It has srun start a member on each other node, compares what they
say of themselves, runs the command here as on the others, and ends when all have ended. It is the job of the run's
supervisor: what that does to its tree, this passes on to the other nodes. One writer of ``nodes.json``.

srun is a launcher only, and is ended as soon as all members are connected: to the TERM that comes with scancel and
with a preemption it answers by killing its step at once, and nobody there could save. The members stay processes of
the job's step: they hear Slurm's own TERM, and end with the job. Measured with 22.05.8.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
from typing import TYPE_CHECKING, Any

from holdfast.agent.detached import build_command
from holdfast.agent.scheduler.slurm.commands import call
from holdfast.core.slurm.nodes import LINK, build_launch, compare, list_forced, tell_ranks
from holdfast.core.slurm.texts import read_config, read_fields
from holdfast.host.clock import monotonic_s, utc_now
from holdfast.host.files import files
from holdfast.host.process.pidfd import send_signal
from holdfast.host.process.processes import identify, list_pids, read_stat
from holdfast.model import wire
from holdfast.model.errors import HoldfastError
from holdfast.model.nodes import NODES, NodeFacts, NodeFailure, NodesRecord, NodeState, NodeStatus
from holdfast.model.record import replace

from .command import Command, as_code, describe_status, install_wakeup, read_wakeup, say
from .facts import read_node
from .link import Link, listen
from .words import Words, read_words

if TYPE_CHECKING:
    import socket

JOIN_WITHIN_S = 300.0
"""A node whose disk is cold, or whose prolog is slow, takes minutes."""
END_WITHIN_S = 10.0
"""Between TERM and KILL of the others, when one node has failed: they cannot go on, nor save together."""
GONE_WITHIN_S = 30.0
"""After the KILL; TCP alone would hold the rest of the allocation for a quarter of an hour."""
SILENT_S = 60.0
MOST_STRANGERS = 256
"""Anybody who reaches this node may connect; who says nothing is let go when more have come."""
LOOK_S = 1.0
TELL_AFTER_S = 0.3
"""After a TERM: where Slurm has sent it to all nodes, they have heard it by then, and are to hear it once."""
ASK_LIMIT_S = 10.0
EXIT_REFUSED, EXIT_GONE, EXIT_ASKED = 78, 71, 143


def main(words: list[str]) -> int:
    """Be the entry ``slurm-lead``; the exit code is that of the node that failed first."""
    wanted = read_words("slurm-lead", words)
    lead = _Lead(wanted)
    try:
        status = lead.run()
    finally:
        lead.end_launcher()
    if status < 0:
        # As on one node the end is a signal's, for whoever judges it; the core is the command's, and not ours.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return as_code(status)


class _Lead:
    """All nodes of one attempt, as seen from the first."""

    def __init__(self, wanted: Words) -> None:
        self._wanted = wanted
        self._count = int(os.environ["SLURM_JOB_NUM_NODES"])
        self._wakeup = install_wakeup()
        self._command = Command()
        self._token = os.urandom(16).hex()
        self._door: socket.socket = listen()
        self._links: dict[int, Link] = {}
        self._strangers: list[Link] = []
        self._heard_s: dict[int, float] = {}
        self._launcher: subprocess.Popen[bytes] | None = None
        self._asked = False
        self._tell_at_s: float | None = None
        self._kill_at_s: float | None = None
        here = NodeState(0, os.environ.get("SLURMD_NODENAME", ""), NodeStatus.JOINING, utc_now())
        others = (NodeState(node, "", NodeStatus.JOINING, utc_now()) for node in range(1, self._count))
        self._record = NodesRecord((here, *others))

    def run(self) -> int:
        """Until all nodes have ended; a status as of `Command.status`."""
        self._choose_rendezvous()
        self._launch()
        if not self._gather() or not self._agree():
            return self._leave_early()
        self.end_launcher()
        self._send(do="go", job=list_forced(os.environ), signals_all=self._signals_all())
        for node in range(self._count):
            self._note(node, NodeStatus.RUNNING)
        self._write()
        self._command.start(self._wanted.command, os.environ)
        while self._command.lives or self._links:
            self._look(LOOK_S if self._tell_at_s is None else TELL_AFTER_S)
            self._act_in_time()
            self._note_own_end()
        self._note_own_end()
        return self._judge()

    # ------------------------------------------------------------------------------------------------- the beginning

    def _choose_rendezvous(self) -> None:
        """Where the ranks meet: the address by which Slurm reaches this node, at a port that is free now."""
        name = os.environ.get("SLURMD_NODENAME", "")
        try:
            fields = read_fields(call(("scontrol", "show", "node", "--oneliner", name), limit_s=ASK_LIMIT_S))
        except HoldfastError:
            fields = {}
        self._address = fields.get("NodeAddr") or name or os.uname().nodename
        with listen() as free:
            os.environ.setdefault("MASTER_PORT", str(free.getsockname()[1]))
        os.environ.setdefault("MASTER_ADDR", self._address)
        os.environ.update(tell_ranks(os.environ, self._count, 0))
        port = os.environ["MASTER_PORT"]
        self._record = replace(self._record, address=os.environ["MASTER_ADDR"], port=int(port) if port.isdigit() else 0)
        self._write()

    def _signals_all(self) -> bool:
        """Whether Slurm's TERM comes to every process of a step; else to its tasks alone.

        Source: kill_proc_tree of proctrack/linuxproc, proctrack_p_signal of proctrack/cgroup; measured with 22.05.8.
        """
        try:
            config = read_config(call(("scontrol", "show", "config"), limit_s=ASK_LIMIT_S))
        except HoldfastError:
            return False
        return config.get("ProctrackType") == "proctrack/linuxproc"

    def _launch(self) -> None:
        wanted = self._wanted
        words = ("--run", wanted.run_dir, "--attempt", str(wanted.attempt), "--", *wanted.command)
        command = build_launch(os.environ, self._count, build_command("slurm-node", *words))
        secret = f"{self._address} {self._door.getsockname()[1]} {self._token}"
        try:
            self._launcher = subprocess.Popen(command, env={**os.environ, LINK: secret}, stdin=subprocess.DEVNULL)
        except OSError as error:
            say(f"{command[0]} cannot be started: {error.strerror}")

    def _gather(self) -> bool:
        """Wait for all members; whether they have come."""
        deadline_s = monotonic_s() + JOIN_WITHIN_S
        while len(self._links) < self._count - 1 and not self._asked and self._record.first is None:
            late = monotonic_s() >= deadline_s
            if late or self._launcher is None or self._launcher.poll() is not None:
                missing = [node.node for node in self._record.nodes[1:] if node.node not in self._links]
                why = f"within {JOIN_WITHIN_S:g} s" if late else "before srun gave up; its words stand above"
                self._fail(missing[0], EXIT_GONE, f"did not come up {why}")
                break
            self._look(LOOK_S / 4)
        return not self._asked and self._record.first is None

    def _agree(self) -> bool:
        """Compare what the nodes have said; whether the job may run over them."""
        here = read_node(self._wanted.run_dir, self._wanted.command, os.environ)
        self._note(0, NodeStatus.READY, host=here.host, facts=here)
        for node in self._record.nodes[1:]:
            assert node.facts is not None
            wrong, odd = compare(here, node.facts)
            for words in odd:
                warning = f"node {node.node} ({node.host}): {words}"
                self._record = replace(self._record, warnings=(*self._record.warnings, warning))
                say(warning)
            if wrong:
                self._fail(node.node, EXIT_REFUSED, "; ".join(wrong))
        self._write()
        return self._record.first is None

    def _leave_early(self) -> int:
        for link in self._links.values():
            link.close()
        self._write()
        return EXIT_ASKED if self._record.first is None else self._record.first.code

    def end_launcher(self) -> None:
        """End srun and its watcher, which would end the step after it."""
        launcher, self._launcher = self._launcher, None
        if launcher is None or launcher.poll() is not None:
            return
        for pid in list_pids():
            # In this order: a pid that was given to another process in between is not that one's child.
            child, stat = identify(pid), read_stat(pid)
            if child is not None and stat is not None and stat.ppid == launcher.pid:
                send_signal(child, signal.SIGKILL)
        launcher.kill()
        launcher.wait()

    # ----------------------------------------------------------------------------------------------------- meanwhile

    def _look(self, limit_s: float) -> None:
        """Take in whatever comes."""
        # Not select(2), which ends at descriptor 1023.
        poll = select.poll()
        ends: tuple[socket.socket | Link, ...] = (self._door, *self._strangers, *self._links.values())
        for descriptor in (self._wakeup, *(each.fileno() for each in ends)):
            poll.register(descriptor, select.POLLIN)
        ready = {number for number, _ in poll.poll(limit_s * 1000)}
        if self._wakeup in ready:
            numbers = read_wakeup(self._wakeup)
            if self._launcher is None:
                self._command.reap()
            if signal.SIGTERM in numbers and not self._asked:
                self._asked, self._tell_at_s = True, monotonic_s() + TELL_AFTER_S
        # Before anybody is let in: of whoever is, nothing more has come yet.
        known = [(node, link) for node, link in self._links.items() if link.fileno() in ready]
        if self._door.fileno() in ready:
            with contextlib.suppress(OSError):
                self._strangers.append(Link(self._door.accept()[0]))
            while len(self._strangers) > MOST_STRANGERS:
                self._strangers.pop(0).close()
        for stranger in [one for one in self._strangers if one.fileno() in ready]:
            self._admit(stranger)
        for node, link in known:
            self._hear(node, link.receive())
        self._look_for_silence()

    def _admit(self, stranger: Link) -> None:
        """Whoever knows the token is a member."""
        messages = stranger.receive()
        if messages == []:
            return  # the rest of the line is on its way
        self._strangers.remove(stranger)
        try:
            message = (messages or [{}])[0]
            node = message["node"]
            if message["token"] != self._token or node in self._links or not 0 < node < self._count:
                raise ValueError
            facts = wire.decode(NodeFacts, message["facts"])
        except (KeyError, TypeError, ValueError):
            stranger.close()
            return
        self._links[node] = stranger
        self._heard_s[node] = monotonic_s()
        self._note(node, NodeStatus.READY, host=facts.host, facts=facts)
        self._write()

    def _hear(self, node: int, messages: list[dict[str, Any]] | None) -> None:
        self._heard_s[node] = monotonic_s()
        if self._record.nodes[node].state is NodeStatus.SILENT:
            self._note(node, NodeStatus.RUNNING)
            self._write()
        for message in messages or ():
            if isinstance(message.get("ended"), int):
                self._take_end(node, message["ended"], str(message.get("tail", "")))
                return
        if messages is None:
            self._links.pop(node).close()
            self._note(node, NodeStatus.GONE)
            self._fail(node, EXIT_GONE, "is gone: its process of holdfast was killed, or the node was lost")

    def _take_end(self, node: int, status: int, tail: str) -> None:
        self._links.pop(node).close()
        self._note(node, NodeStatus.ENDED, code=as_code(status))
        self._write()
        if status != 0 and not self._asked and self._record.first is None:
            host = self._record.nodes[node].host
            say(f"node {node} ({host}) ended with {describe_status(status)}; the last of its output:\n{tail.rstrip()}")
            self._fail(node, as_code(status), f"failed with {describe_status(status)}")

    def _note_own_end(self) -> None:
        status = self._command.status
        if status is not None and self._record.nodes[0].state is not NodeStatus.ENDED:
            self._note(0, NodeStatus.ENDED, code=as_code(status))
            if status != 0:
                self._fail(0, as_code(status), f"failed with {describe_status(status)}")
            self._write()

    def _look_for_silence(self) -> None:
        for node in self._links:
            silent_s = monotonic_s() - self._heard_s[node]
            if silent_s >= SILENT_S and self._record.nodes[node].state is NodeStatus.RUNNING:
                self._note(node, NodeStatus.SILENT)
                say(f"node {node} ({self._record.nodes[node].host}) has said nothing for {silent_s:.0f} s")
                self._write()

    # --------------------------------------------------------------------------------------------------------- the end

    def _fail(self, node: int, code: int, words: str) -> None:
        """One node cannot go on: then none can. Only the first counts, and nothing does once a stop was asked for."""
        if self._asked or self._record.first is not None:
            return
        failure = NodeFailure(node, self._record.nodes[node].host, code, words)
        self._record = replace(self._record, first=failure)
        self._write()
        say(f"node {node} ({failure.host or 'not named by Slurm yet'}) {words}; the others are ended with it")
        self._send(do="end", within_s=END_WITHIN_S)
        if self._command.lives:
            self._command.terminate()
        self._kill_at_s = monotonic_s() + END_WITHIN_S

    def _act_in_time(self) -> None:
        if self._tell_at_s is not None and monotonic_s() >= self._tell_at_s:
            self._tell_at_s = None
            self._send(do="term")
        if self._kill_at_s is not None and monotonic_s() >= self._kill_at_s and self._command.lives:
            self._command.kill()
        if self._kill_at_s is not None and monotonic_s() >= self._kill_at_s + GONE_WITHIN_S:
            # A node that is down without a word: its members end with their connections, where they live.
            for node in list(self._links):
                self._links.pop(node).close()
                self._note(node, NodeStatus.GONE)

    def _send(self, **message: object) -> None:
        for link in self._links.values():
            link.send(**message)

    def _judge(self) -> int:
        first, own = self._record.first, self._command.status or 0
        if first is not None:
            return own if first.node == 0 else first.code
        codes = [node.code for node in self._record.nodes[1:] if node.code]
        return own or (codes[0] if codes else 0)

    def _note(self, node: int, state: NodeStatus, **facts: Any) -> None:  # noqa: ANN401 - fields of `NodeState`
        nodes = list(self._record.nodes)
        nodes[node] = replace(nodes[node], state=state, since=utc_now(), **facts)
        self._record = replace(self._record, nodes=tuple(nodes))

    def _write(self) -> None:
        """A record costs the job nothing: a full disk is the supervisor's to tell."""
        path = f"{wire.attempt_dir(self._wanted.run_dir, self._wanted.attempt)}/{NODES}"
        try:
            files.commit(path, wire.to_bytes(self._record), durable=False)
        except OSError:
            return
