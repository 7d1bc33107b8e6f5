"""The container of one attempt: created, started behind a gate, known by its processes, removed when all is recorded.

Loaded for jobs with an image alone. The runtime's client is the job's leader, below our keeper; its exit code is the
container's. What stands between a runtime that starts a command at once and a lease that must name a witness first is
the gate: a FIFO at which the first program inside waits. It is opened when `container.json` and the lease record name
the container's first process and its control group, so whoever dies before leaves a container in which nothing of the
user's has run, and whoever takes over goes on from that record.

A runtime is asked in children with a deadline, and the loop waits for none of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from holdfast.core.container.command import build_exec_command, build_start_command, name_container
from holdfast.core.run.events import JobStarted, StartFailed
from holdfast.host.clock import monotonic_s, utc_now
from holdfast.host.contain import limits, members
from holdfast.host.container import members as inside
from holdfast.host.container.choose import open_runtime
from holdfast.host.container.docker import ELSEWHERE, Docker
from holdfast.host.container.recorded import prove_first, read_record
from holdfast.host.container.runtime import RuntimeProblem, explain_silence
from holdfast.host.files import files
from holdfast.host.process import pidfd
from holdfast.host.process.processes import identify, is_alive
from holdfast.model import wire
from holdfast.model.container import (
    CONTAINER_RECORD,
    IMAGE_RECORD,
    ROOM,
    SETTINGS,
    ContainerRecord,
    ResolvedImage,
    RuntimeName,
)
from holdfast.model.errors import PreflightFailed
from holdfast.model.identity import WaitStatus
from holdfast.model.record import replace
from holdfast.model.run import Refusal, StopCause, StopRequest

from .ask_inside import put_question, read_answer
from .client_watch import ClientWatch
from .plan import build_client_environment, plan_container
from .removal import ContainerRemoval
from .room import LARGEST_SAID, GateLost, Room
from .runtime_requests import RuntimeRequests
from .start_failure import explain_absence, explain_client

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.agent.supervise.lease.lease import Lease
    from holdfast.agent.supervise.loop import Child
    from holdfast.agent.supervise.start.containment import Containment
    from holdfast.host.contain.group import ControlGroup
    from holdfast.host.container.runtime import Runtime
    from holdfast.host.files.inotify import Inotify
    from holdfast.model.identity import ProcessId
    from holdfast.model.lease import LeasedDevice

    from .ask_inside import Answer

FIRST_LOOK_S, LAST_LOOK_S = 0.01, 0.1
ASK_AFTER_S = 0.5
"""Where the first process was not found by its control group in this time, the runtime is asked."""
HERE_WITHIN_S = 10.0
"""After that the process that a daemon names is not about to get its root any more: it is none of this box's."""
UP_WITHIN_S = 120.0
"""From `start` to a first process: a daemon that takes longer hangs."""
MONITOR_WITHIN_S = 2.0
WORDS_WITHIN_S = 0.1
CREATED_WITHIN_S = 200.0
"""Longer than a runtime's calls of one creation have together, each of which ends its client: the last resort."""
FROM_RUNTIMES = (RuntimeName.PODMAN, RuntimeName.DOCKER)
CLIENT_LOST = "it left before the container, which goes on; what the job prints from now on is not kept"


class ContainerControl:
    """One attempt's container; `comes_up` until its gate was opened or it failed.

    Emits `JobStarted` when its gate was opened, `StartFailed` when it did not come up; `on_emptied` is called when all
    inside have ended.
    """

    def __init__(self, context: SupervisorContext, lease: Lease, on_emptied: Callable[[], None]) -> None:
        """Nothing exists before `create`; `record` is what an earlier supervisor of the attempt left."""
        self._context, self._lease = context, lease
        self.room = Room(context.recorder.path(ROOM))
        self.record = read_record(context.directory)
        context.container_init = None if self.record is None else self.record.init
        self._resolved: ResolvedImage | None = None
        self._work: Child | None = None
        self._containment: Containment | None = None
        self._pause_s = FIRST_LOOK_S
        self._began_s = 0.0
        self._named: int | None = None
        self._told: int | None = None
        self.comes_up = self._creating = False
        self.removal = ContainerRemoval(context)
        self._requests = RuntimeRequests(context)
        self._client: ProcessId | None = None
        self._client_watch = ClientWatch(context.loop, self.settle, on_emptied)
        self._when_made: Callable[[], None] | None = None
        self._notices: Inotify | None = None
        self.argv: tuple[str, ...] = ()
        self.environ: dict[str, str] = {}

    @property
    def resolved(self) -> ResolvedImage:
        """What preflight has found.

        Raises:
            PreflightFailed: it left no record of it.
        """
        if self._resolved is None:
            try:
                data = files.read_bytes(self._context.recorder.path(IMAGE_RECORD))
                self._resolved = wire.from_bytes(ResolvedImage, data, IMAGE_RECORD)
            except (OSError, wire.WireError) as error:
                raise PreflightFailed(f"which image is meant is not on record: {error}", hint="restart it") from None
        return self._resolved

    @property
    def _runtime(self) -> Runtime:
        record = self.record
        name = self.resolved.runtime if record is None else record.runtime
        program = self.resolved.program if record is None else record.program
        environ = {**self._context.environ, **({} if record is None else record.settings)}
        return open_runtime(name, program, environ, self.room.path)

    @property
    def by_daemon(self) -> bool:
        """Whether the container is none of our descendants."""
        return (self.record or self.resolved).runtime is RuntimeName.DOCKER

    @property
    def has_own_namespaces(self) -> bool:
        """Whether the runtime must see the box's own pids: a PID namespace around it would mislead it."""
        return self.resolved.runtime in FROM_RUNTIMES

    def plan_limits(self, group: ControlGroup | None) -> limits.LimitPlan:
        """What holds each limit: the runtime, where it makes a control group of its own."""
        spec, rules = self._context.spec, self._context.rules
        if self.resolved.own_group:
            group = inside.foresee_group(self.resolved)
        priority = self._context.choose_priority(spec.priority).priority
        return limits.plan_limits(spec.limits, group, priority=priority, nice=rules.nice, spread=self._context.run_id)

    # --- create ----------------------------------------------------------------------------------------------------

    def create(
        self,
        devices: tuple[LeasedDevice, ...],
        values: Mapping[str, str],
        then: Callable[[], None],
    ) -> None:
        """Create the container beside the loop, record it, then call `then`; `values` are the job's environment inside.

        Raises:
            PreflightFailed: the cards cannot be put into a container of this runtime.
        """
        context, resolved, runtime = self._context, self.resolved, self._runtime
        plan = plan_container(context, resolved, devices, self._lease.inventory, values, self.room.path)
        self.room.make(plan)
        put_question(self.room, context.spec, plan.cards)
        self.environ = build_client_environment(plan, context.environ)
        self.room.hold()

        def note(container: str) -> ContainerRecord:
            settings = {name: value for name, value in context.environ.items() if name in SETTINGS}
            kind, program, image, digest = resolved.runtime, resolved.program, resolved.image, resolved.digest
            record = ContainerRecord(kind, program, container, plan.name, image, digest, settings=settings)
            self._commit(record)
            return record

        def made(id: str, warned: str) -> None:  # noqa: A002 - as of `create`
            self._work, self._creating = None, False
            record = note(id)
            if warned:
                context.recorder.log(f"{resolved.runtime.value} create: {warned}")
                context.recorder.event("container_warned", runtime=resolved.runtime, id=record.id, words=warned)
            words = build_start_command(record.id) if resolved.runtime in FROM_RUNTIMES else build_exec_command(plan)
            self.argv = (resolved.program, *words)
            context.recorder.event(
                "container_created",
                runtime=resolved.runtime,
                id=record.id,
                image=resolved.image,
                digest=resolved.digest,
                cards=plan.cards.how,
                why=resolved.why,
            )
            (self._when_made or then)()

        def fail(why: str, remedy: str, *, silent: bool = True) -> None:
            if silent:
                # It may be made yet: by its name it is removed, now or by `reconcile`.
                note(plan.name)
            self._fail(why, remedy)

        def create() -> object:
            try:
                return {"id": runtime.create(plan, context.environ), "warned": runtime.warned}
            except RuntimeProblem as error:
                return [error.why, error.remedy or "see its own log", error.silent]

        self._creating = True
        self._work = context.loop.run_child(
            create,
            lambda answer: made(**answer) if isinstance(answer, dict) else fail(*answer[:2], silent=answer[2]),
            lambda why: fail(why, f"see: {resolved.runtime.value} info"),
            within_s=CREATED_WITHIN_S,
        )

    def _commit(self, record: ContainerRecord) -> None:
        self.record, self._context.container_init = record, record.init
        self._context.recorder.commit(CONTAINER_RECORD, wire.to_bytes(record))

    def _fail(self, why: str, remedy: str, *, code: str = "container", exit_code: int = 71) -> None:
        self._work, self._creating = None, False
        self._end_looking()
        if self._when_made is not None:
            self._when_made()
            return
        image = self.resolved
        words = f"{image.runtime.value} did not start {image.image}: {why}"
        self._context.emit(StartFailed(Refusal(code, exit_code, words, remedy)))

    # --- start -----------------------------------------------------------------------------------------------------

    def await_start(self, containment: Containment, client: ProcessId) -> None:
        """The client was started: find the first process, make it public, open the gate. Ends in an event."""
        self._containment, self._client = containment, client
        self._began_s = monotonic_s()
        self._begin_looking()

    def resume(self, containment: Containment) -> Containment:
        """The containment of a run that another supervisor started; a gate that it had not opened is opened now."""
        self._containment = containment
        self.room.hold()
        if self.record is not None:
            containment.enter_container(self.record, inside.open_group(self.record))
            containment.plan = self.plan_limits(containment.own_group)
        return containment

    def find_end_alone(self) -> WaitStatus | None:
        """The run is taken over: how the command ended by itself after its client was killed; None where it did not.

        While a supervisor lives, a client that was killed ends the run. Where none did, nobody ended anything: the
        command went on, and has left by itself, or because nobody was there any more who could end it.
        """
        record, status = self.record, self._context.recorder.read_status()
        if record is None or record.init is None or not record.opened or self.lives():
            return None
        if status is not None and status.code is not None:
            return None
        end = self.room.read_end(status or WaitStatus(None, int(signal.SIGKILL), source="container"))
        if end is None:
            return None
        if not record.outlived:
            self._commit(replace(record, outlived=True))
            self._context.recorder.event("client_outlived", runtime=record.runtime, id=record.id)
        return replace(end, ended_at=self.room.read_end_time(after=end.ended_at))

    def take_up(self, client: ProcessId, *, begins: bool) -> None:
        """It runs, or did when it was adopted: name the witnesses, and go on with a start if it `begins`."""
        if self.record is None:
            return
        self._client, self._began_s = client, monotonic_s()
        if self.record.init is not None:
            self._lease.note_container(self.record.groups[0] if self.record.groups else None, self.record.init)
            self._client_watch.begin(self.record.init)
        if begins and not self.record.opened:
            self._begin_looking()

    def _begin_looking(self) -> None:
        """Look for it now, at each word of the first program inside, and at intervals."""
        self.comes_up = True
        if self._notices is None:
            self._notices = self.room.watch()
            if self._notices is not None:
                self._context.loop.add(self._notices.fileno(), self._on_notice)
        self._look()

    def _on_notice(self) -> None:
        if self._notices is not None and self._notices.read():
            self._look()

    def _end_looking(self) -> None:
        self.comes_up = False
        self._context.loop.timers.disarm("container")
        if self._notices is not None:
            self._context.loop.remove(self._notices.fileno())
            self._notices.close()
            self._notices = None

    def _look(self) -> None:
        assert self.record is not None
        if self.record.runtime not in FROM_RUNTIMES:
            # All of it descends from us and holds the lock already: there is nobody else to name.
            self._open_gate()
            return
        if self.record.init is None:
            pid = self._runtime.find_init(self.record)
            if pid is not None and self._note_init(pid):
                self._open_gate()
                return
            self._named = pid if pid is not None else self._named
        else:
            self._open_gate()
            return
        self._look_again()

    def _look_again(self) -> None:
        if self._context.recorder.read_status() is not None:
            self._context.loop.timers.arm("container", WORDS_WITHIN_S, self._tell_failure)
            return
        waited_s = monotonic_s() - self._began_s
        if waited_s > UP_WITHIN_S:
            self._tell_late()
            return
        if waited_s > ASK_AFTER_S and self._work is None and self.by_daemon and self.record is not None:
            self._ask()
        self._context.loop.timers.arm("container", self._pause_s, self._look)
        self._pause_s = min(self._pause_s * 1.5, LAST_LOOK_S)

    def _tell_late(self) -> None:
        found = self.record is not None and self.record.init is not None
        if not found and self._named is not None and identify(self._named) is not None:
            words = f"process {self._named} may be its first, and nothing that can be seen of it proves that"
            self._fail(words, "see whether /proc is mounted with hidepid, and who its image store lets in")
        elif self._lease.is_public:
            self._fail(f"it did not come up within {UP_WITHIN_S:g} s", explain_silence(self.resolved.program))
        else:
            words = "the lease cannot be published where it lies, and has to name who is inside"
            self._fail(words, "see lease_record_stale in events.jsonl; holdfast doctor", code="lease")

    def _ask(self) -> None:
        """Where the daemon puts its containers elsewhere than we look: by its own word."""
        record, runtime = self.record, self._runtime
        assert record is not None
        assert isinstance(runtime, Docker)

        def heard(pid: object) -> None:
            self._work = None
            if not isinstance(pid, int) or self.record is None or self.record.init is not None:
                return
            if self._note_init(pid) or monotonic_s() - self._began_s <= HERE_WITHIN_S:
                return
            # One that is named once may be the first process all the same, and have ended just now.
            if self._told != pid:
                self._told = pid
            elif self._context.recorder.read_status() is None:
                seen = "is another's" if identify(pid) is not None else "is not there"
                self._fail(f"it says that it runs, and process {pid} here {seen}", ELSEWHERE)

        self._work = self._context.loop.run_child(lambda: runtime.ask_init(record), heard, heard)

    def _note_init(self, pid: int) -> bool:
        """Commit who is inside, to our record and to the lease's, before anything of the user's runs."""
        assert self.record is not None
        init = prove_first(pid, self.record.id, self.room.path)
        if init is None:
            return False
        groups = inside.find_groups(pid, self.record.id) if self.resolved.own_group else ()
        if self.by_daemon:
            self._be_nice(pid)
        self._commit(replace(self.record, init=init, groups=groups))
        if self._containment is not None:
            self._containment.enter_container(self.record, inside.open_group(self.record))
        self._lease.note_container(groups[0] if groups else None, init)
        return True

    def _be_nice(self, pid: int) -> None:
        """Priority and CPUs of what a daemon starts are the daemon's; what is started from now on inherits ours."""
        plan = self._containment.plan if self._containment is not None else limits.LimitPlan()
        assert self.record is not None
        group = inside.open_group(replace(self.record, groups=inside.find_groups(pid, self.record.id)))
        for problem in limits.apply_to_others({pid, *((group.pids() or ()) if group is not None else ())}, plan):
            self._context.recorder.log(f"in the container: {problem}")

    def _open_gate(self) -> None:
        """Let the command go: the lease's record is public, the cards are proven inside, somebody waits there."""
        answer = read_answer(self.room, self.resolved.image)
        if not self._lease.is_public or not answer.finished:
            self._look_again()
            return
        if answer.refusal is not None:
            self._turn_away(answer)
            return
        try:
            now = utc_now()
            if self.room.open_gate() or self.room.has_begun():
                # Or a supervisor that was killed opened it, and could not commit that any more.
                self._pass_gate(now)
            else:
                self._look_again()
        except GateLost as error:
            self._fail(str(error), "restart it")

    def _turn_away(self, answer: Answer) -> None:
        """The command is not to run: the first program inside leaves, or is ended where it is not at its gate yet."""
        self._end_looking()
        assert answer.refusal is not None
        self._context.recorder.event("cards_not_inside", findings=wire.encode(answer.findings))
        with contextlib.suppress(GateLost):
            self.room.open_gate("no")
        self._context.emit(StartFailed(answer.refusal))

    def _pass_gate(self, let_go: str) -> None:
        """The command goes: on record, then known to the run."""
        assert self.record is not None
        self._end_looking()
        self._commit(replace(self.record, opened=True))
        if self.record.init is not None:
            self._client_watch.begin(self.record.init)
        self._context.recorder.event("exec", container=self.record.id, pid=self.record.init and self.record.init.pid)
        self._context.emit(JobStarted(let_go))

    def _tell_failure(self) -> None:
        """The client has ended and the gate was never opened: the command has not run."""
        self._end_looking()
        absent = explain_absence(self.room, self.resolved.image)
        if absent is not None:
            self._context.emit(StartFailed(absent))
            return
        recorder = self._context.recorder
        tail = files.read_last_lines(recorder.path(wire.OUTPUT), LARGEST_SAID)
        self._fail(*explain_client(tail, self.resolved, recorder.read_status()))

    # --- while it runs ---------------------------------------------------------------------------------------------

    def choose_gentle(self, found: list[members.Member]) -> list[members.Member]:
        """Whom a gentle signal is for: the job inside; not the client, which would leave, nor an init."""
        by_runtime = self.record is not None and self.record.runtime in FROM_RUNTIMES
        return inside.choose_gentle(self.record if by_runtime else None, found, has_init=self._has_init())

    def _has_init(self) -> bool:
        return (self.resolved.init and self._context.spec.container.init) or self.room.has_python()

    def signal_tree(self, tree: members.RunTree, number: int) -> int:
        """For a keeper without a supervisor: signal what is left, inside and around; how many there were."""
        self.record = read_record(self._context.directory)
        found = [one for one in members.find_members(self.complete(tree)) if one.process.pid != os.getpid()]
        chosen = found if number == signal.SIGKILL else self.choose_gentle(found)
        members.signal_members(chosen, number)
        if self.record is not None and inside.is_paused(self.record):
            inside.thaw(self.record)
        return len(chosen)

    def complete(self, tree: members.RunTree) -> members.RunTree:
        """The tree with what proves who is inside."""
        return tree if self.record is None else inside.complete_tree(self.record, tree)

    def press(self, number: int, *, refused: bool) -> None:
        """All inside were signalled, but for those whom the kernel has `refused`: have the runtime do what is left."""
        if self.record is not None and self.record.runtime in FROM_RUNTIMES and self.lives():
            self._requests.end(self._runtime, self.record, number, refused=refused)

    def settle(self) -> None:
        """Where all inside have ended and the client has not: its end is no word on theirs. It is killed."""
        record = self.record
        if record is None or record.init is None or self.lives() or self._context.recorder.read_status() is not None:
            return
        self._commit(replace(record, outlived=True))
        self._context.recorder.event("client_outlived", runtime=record.runtime, id=record.id)
        if self._client is not None:
            pidfd.send_signal(self._client, signal.SIGKILL)

    def end_paused(self) -> None:
        """Before KILL goes to all of the tree: where somebody has paused what is inside, it ends first, alone."""
        record = self.record
        if record is not None and record.runtime is RuntimeName.PODMAN and inside.is_paused(record):
            inside.end_paused(record, within_s=MONITOR_WITHIN_S)

    def lives(self) -> bool:
        """Whether anything may be inside."""
        return self.record is not None and inside.has_living(self.record)

    def read_status(self, status: WaitStatus) -> WaitStatus | None:
        """The leader's end as the command's own: what its client says is one number, what was written inside is exact.

        A client that was ended by a signal says nothing of the command, and ends the run. One that leaves by itself
        before the container, because its daemon was restarted, says nothing either: the command goes on without it, and
        its end, None until then, is what was written inside.
        """
        record = self.record
        if record is None or (status.code is None and not record.outlived):
            return status
        end = self.room.read_end(status)
        if end is None and record.opened and not record.lost and record.init is not None and is_alive(record.init):
            self._commit(replace(record, lost=True))
            self._context.recorder.event(
                "client_lost", runtime=record.runtime, id=record.id, status=status.describe(), why=CLIENT_LOST
            )
        if self.is_alone:
            return None if end is None else replace(end, ended_at=self.room.read_end_time(after=status.ended_at))
        if end is not None and status.code is None:
            return replace(end, ended_at=self.room.read_end_time(after=status.ended_at))
        return end or self.room.read_convention(status, opened=record.opened)

    @property
    def is_alone(self) -> bool:
        """Whether it goes on, or has ended, without its client."""
        return self.record is not None and self.record.lost

    def find_stop(self, status: WaitStatus) -> StopRequest | None:
        """Who stopped it past holdfast, as its first process saw; a place that signals all of a run tells us itself."""
        if self._context.foreground is not None or not self.room.was_told_to_end(status):
            return None
        words = f"{self.resolved.runtime.value} stop by hand, or its daemon"
        return StopRequest(StopCause.SIGNAL, "SIGTERM to the container", detail=words)

    def read_mismatch(self) -> str:
        """What of the cards inside was not as leased; empty when nothing was."""
        return self.room.read_word("mismatch ")

    def ask_memory(self, then: Callable[[bool], None]) -> None:
        """Call `then` with whether the kernel killed inside for want of memory."""
        if self.record is None or self.record.runtime not in FROM_RUNTIMES:
            then(False)
        else:
            self._requests.ask_memory(self._runtime, self.record, self.room, then)

    # --- the end ---------------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Nobody waits for it to come up any more. What is being created is left to be, and removed at the end."""
        self._end_looking()
        self._client_watch.end()
        if self._work is not None and not self._creating:
            self._work.abandon()
            self._work = None
        elif self._creating and self._when_made is None:
            self._when_made = _leave_it

    def remove(self) -> None:
        """Remove it, by id, beside the loop."""
        self.abandon()
        if self.record is None and not self._creating:
            return
        if (self.record or self.resolved).runtime not in FROM_RUNTIMES:
            return
        self.removal.expect()
        if self._creating:
            # Killed now, its runtime might still make one, after we have looked.
            self._when_made = self._remove_now
        else:
            self._remove_now()

    def _remove_now(self) -> None:
        name = name_container(self._context.run_id, self._context.attempt, self._context.run_dir)
        self.removal.begin(self._runtime, name if self.record is None else self.record.id)


def _leave_it() -> None:
    """What was created is not started."""
