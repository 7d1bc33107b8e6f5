"""The detectors of hangs, H1 to H11: pure functions of a `Case`, tri-state.

A hang needs three negatives that do not depend on each other: the run's own signs of progress stand still, the
processes use no CPU and do no I/O (or only spin), and no phase that may take long explains it. What a detector cannot
read makes it answer UNKNOWN.
"""

from __future__ import annotations

from holdfast.diagnosis.evidence import Answer, Detection
from holdfast.diagnosis.live.case import Case, is_writer
from holdfast.diagnosis.live.change import ProcessChange, ThreadChange
from holdfast.model.pattern import compile_later
from holdfast.model.units import format_count
from holdfast.model.verdict import Clue, Confidence, LiveClass

from .progress import MANY_INTERVALS, Pace
from .ranks import find_exchange, find_odd, read_ranks
from .waits import Wait, name_call

HIGH_UTILISATION_PCT = 90.0
LOW_POWER_SHARE = 0.4
LOW_MEMORY_PCT = 5.0
OLD_S = 60.0
SHUTDOWN_WORDS = ("_shutdown", "_exit_function", "_python_exit", "atexit", "_run_exitfuncs", "_cleanup", "finish_run")
LEAVING = frozenset({"finished"})
STORAGE_WAITS = frozenset({Wait.STORAGE, Wait.FUSE, Wait.NFS})
_OF_RUNTIME = compile_later(r"/(?P<runtime>libpod|docker)[-/](?P<id>[0-9a-f]{64})(?:\.scope)?(?:/|$)")
"""The group of a container, by either driver of its runtime. Source: podman 4.3, libpod; moby, daemon/oci_linux.go."""


def describe_thread(process: ProcessChange, thread: ThreadChange) -> str:
    """One thread for people: who, state, where in the kernel, which call."""
    facts = thread.after
    who = f"pid {process.pid} ({process.after.name})"
    if facts.tid != process.pid:
        who += f" thread {facts.tid} ({facts.name})"
    if facts.wait is Wait.RUNNING:
        return f"{who}: runs, or could"
    where = f" in {facts.wchan}" if facts.wchan else ""
    call = f", system call {name_call(facts.syscall)}" if facts.syscall is not None else ""
    return f"{who}: state {facts.state}, waits for {facts.wait.value}{where}{call}"


def say_no(detector: str, kind: LiveClass, *against: Clue) -> Detection:
    """The answer NO, with what speaks against."""
    return Detection(detector, kind, Answer.NO, evidence_against=against)


def say_unknown(detector: str, kind: LiveClass, text: str) -> Detection:
    """The answer UNKNOWN, with what could not be read."""
    return Detection(detector, kind, Answer.UNKNOWN, unknown=(Clue(text),))


# ------------------------------------------------------------------------------------------------- H1-H3 storage


def detect_storage(case: Case) -> Detection:
    """H1 to H3: a thread slept in storage, FUSE or NFS from one look to the next without waking."""
    stuck, unsure = [], 0
    for process in case.change.living:
        for thread in process.threads:
            wait = thread.wait
            if wait not in STORAGE_WAITS or (wait is Wait.STORAGE and thread.after.state != "D"):
                continue
            if thread.is_still is None:
                unsure += 1
            elif thread.is_still:
                stuck.append((process, thread))
    if not stuck:
        if unsure:
            return say_unknown(
                "H1", LiveClass.STORAGE_WAIT, "context switches are not readable: a wait may be a new one"
            )
        return say_no("H1", LiveClass.STORAGE_WAIT)
    seen = tuple(_storage_clue(case, *pair) for pair in stuck[:5])
    if case.alive:
        return Detection(
            "H1", LiveClass.STORAGE_WAIT, Answer.NO, evidence_for=seen, evidence_against=case.progress.clues
        )
    process, thread = stuck[0]
    place = _place(case, process, thread)
    detector = {Wait.FUSE: "H2", Wait.NFS: "H3"}.get(thread.wait or Wait.STORAGE, "H1")
    return Detection(
        detector,
        LiveClass.STORAGE_WAIT,
        Answer.YES,
        Confidence.LIKELY,
        (*seen, *case.progress.clues),
        gotchas=("U8",),
        facts={"path": place or "a file system", "pid": str(process.pid), "wchan": thread.after.wchan or "?"},
    )


def _place(case: Case, process: ProcessChange, thread: ThreadChange) -> str:
    on = case.waited.get(thread.after.tid)
    if on is not None and on.mount_point:
        source = f", from {on.mount_source}" if on.mount_source not in ("", "none") else ""
        path = next((target for target in on.targets if target.startswith("/")), "")
        return f"{path} on {on.mount_point} ({on.mount_kind}{source})"
    suspects = case.suspects.get(process.pid, ())
    return ", ".join(f"{s.mount_point} ({s.mount_kind} {s.mount_source})" for s in suspects)


def _storage_clue(case: Case, process: ProcessChange, thread: ThreadChange) -> Clue:
    place = _place(case, process, thread)
    text = f"{describe_thread(process, thread)}; it did not wake once in {thread.window_s:.1f} s"
    return Clue(text + (f"; {place}" if place else ""), f"/proc/{process.pid}/task/{thread.after.tid}")


# --------------------------------------------------------------------------------------- H8 stopped, and zombies


def detect_paused(case: Case) -> Detection:
    """H8: stopped by a signal, a terminal, a debugger, or a frozen control group."""
    stopped = [p for p in case.change.living if _all_in(p, {Wait.STOPPED, Wait.TRACED})]
    frozen = [p for p in case.change.living if _all_in(p, {Wait.FROZEN})]
    if case.box.frozen or (frozen and len(frozen) == len(case.change.living)):
        facts = _name_freezer(case.target.group_dirs)
        clue = Clue(f"its control group is frozen: {facts['how']}", "cgroup.freeze or freezer.state")
        return Detection("H8", LiveClass.PAUSED, Answer.YES, Confidence.CERTAIN, (clue,), facts=facts)
    pids = {process.pid for process in stopped}
    running = [process for process in case.focus() if process.pid not in pids]
    # One of many that is stopped holds the job up only where the others do nothing, or wait for it as ranks do.
    works = any(process.deciding is not None and not process.deciding.is_idle for process in running)
    if not stopped or (running and (case.alive or (works and not (case.ranks() and case.overdue)))):
        return say_no("H8", LiveClass.PAUSED)
    traced = next((process for process in stopped if process.after.tracer), None)
    how = f"the debugger with pid {traced.after.tracer}" if traced is not None else "a stop signal"
    clues = tuple(Clue(f"pid {p.pid} ({p.after.name}) is stopped by {how}", f"/proc/{p.pid}/status") for p in stopped)
    return Detection(
        "H8",
        LiveClass.PAUSED,
        Answer.YES,
        Confidence.LIKELY if running else Confidence.CERTAIN,
        clues[:5],
        facts={"how": how, "pid": str(stopped[0].pid)},
    )


def _name_freezer(directories: tuple[str, ...]) -> dict[str, str]:
    """Who froze these groups, and how they go on: of a container the runtime that names its group by the id."""
    found = next((match for path in directories if (match := _OF_RUNTIME.search(path))), None)
    if found is None:
        return {"how": "a frozen control group", "resume": "whoever froze it has to thaw it"}
    name = "podman" if found["runtime"] == "libpod" else "docker"
    words = f"{name} unpause {found['id'][:12]}, or `holdfast stop`, which does that itself"
    return {"how": f"its runtime, which has paused the container ({name} pause)", "resume": words}


def _all_in(process: ProcessChange, waits: set[Wait]) -> bool:
    threads = [thread for thread in process.threads if thread.after.state not in "ZX"]
    return bool(threads) and all(thread.after.wait in waits and thread.before.wait in waits for thread in threads)


def detect_zombie(case: Case) -> Detection:
    """The whole tree has ended and waits to be reaped. A zombie leader with living threads is alive."""
    if case.change.living or not case.change.processes:
        return say_no("H8z", LiveClass.ZOMBIE)
    process = case.change.processes[0]
    clue = Clue(
        f"pid {process.pid} ({process.after.name}) has ended and no thread of it lives; pid {process.after.ppid} has "
        "not asked for its exit status",
        f"/proc/{process.pid}/stat",
    )
    return Detection(
        "H8z", LiveClass.ZOMBIE, Answer.YES, Confidence.CERTAIN, (clue,), facts={"parent": str(process.after.ppid)}
    )


# ------------------------------------------------------------------------------------------- H7 collective hang


def detect_collective(case: Case) -> Detection:
    """H7: ranks wait for each other; the odd one is named from dumps, stacks, steps or waits."""
    ranks = read_ranks(case)
    spinning = _cards_spin(case)
    if len(ranks) < 2 and not spinning:
        return Detection("H7", LiveClass.COLLECTIVE_HANG, Answer.NOT_APPLICABLE)
    if case.alive:
        return say_no("H7", LiveClass.COLLECTIVE_HANG, *case.progress.clues)
    odd = find_odd(ranks)
    clues = [Clue(rank.describe(), f"/proc/{rank.pid}") for rank in ranks[:8]]
    facts = {"who": ", ".join(str(rank.rank) for rank in odd) or "unknown"}
    findings = case.flight.value or ()
    if findings:
        clues.insert(0, Clue(findings[0].describe(), "Flight Recorder"))
        facts["who"] = ", ".join(map(str, findings[0].odd))
    if spinning is not None:
        clues.append(spinning)
    exchange = find_exchange(case)
    if exchange is not None and not (findings or case.overdue):
        return say_no("H7", LiveClass.COLLECTIVE_HANG, exchange)
    waiting = [rank for rank in ranks if rank.still and rank not in odd]
    if not (findings or spinning or (waiting and (odd or len(waiting) == len(ranks)))):
        return say_no("H7", LiveClass.COLLECTIVE_HANG, *clues)
    if not case.overdue and not findings and any(rank.busy for rank in ranks):
        # Ranks that wait for one that computes: this is what every uneven step looks like.
        return say_unknown("H7", LiveClass.COLLECTIVE_HANG, "a rank computes and nothing says how long a step may take")
    sure = Confidence.LIKELY if exchange is None and (case.overdue or findings) else Confidence.POSSIBLE
    against = () if exchange is None else (exchange,)
    return Detection(
        "H7", LiveClass.COLLECTIVE_HANG, Answer.YES, sure, (*clues, *case.progress.clues), against,
        unknown=() if case.flight.known else (Clue(case.flight.unread, "Flight Recorder"),), facts=facts,
    )  # fmt: skip


def _cards_spin(case: Case) -> Clue | None:
    """A collective that waits spins: full utilisation, little power, no memory traffic, in every reading."""
    use, power = case.card_values("utilisation_pct"), case.card_values("power_share")
    traffic = case.card_values("memory_utilisation_pct")
    if not use or not power or min(use) < HIGH_UTILISATION_PCT or max(power) >= LOW_POWER_SHARE:
        return None
    if traffic and max(traffic) > LOW_MEMORY_PCT:
        return None
    text = f"the cards are {min(use):.0f} % busy at no more than {max(power):.0%} of their power: they wait, spinning"
    return Clue(text, "NVML")


# ---------------------------------------------------------------------------------------------------- H4 deadlock


def detect_deadlock(case: Case) -> Detection:
    """H4: a thread that others wait for sleeps on a lock without a timeout, and nothing in the tree can wake it."""
    if case.progress.pace is Pace.MOVING or case.cards_busy:
        return say_no("H4", LiveClass.DEADLOCK, *case.progress.clues)
    unread = ""
    for process in case.focus():
        main = process.deciding
        if main is None or main.after.state in "TtD":
            continue
        if main.after.wchan is None and main.after.syscall is None and main.after.state == "S":
            unread = f"pid {process.pid}: the kernel does not tell us what its main thread waits for"
            continue
        if main.wait is not Wait.FUTEX or main.is_still is False:
            continue
        if main.is_still is None:
            unread = f"pid {process.pid}: context switches are not readable"
            continue
        found = _judge_lock(case, process, main)
        if found is not None:
            return found
    return say_unknown("H4", LiveClass.DEADLOCK, unread) if unread else say_no("H4", LiveClass.DEADLOCK)


def _judge_lock(case: Case, process: ProcessChange, main: ThreadChange) -> Detection | None:
    threads = _list_threads(case, process)
    # A lock in shared memory can be another process's: only the tree as a whole proves that nobody is left to wake it.
    closed = all(thread.waits_for_ever for focus in case.focus() for thread in _list_threads(case, focus))
    quiet = all(thread.is_idle for thread in threads)
    if not quiet or not (closed or case.overdue):
        return None
    clue = Clue(describe_thread(process, main), f"/proc/{process.pid}/task/{main.after.tid}")
    whole = (
        "the one thread of it and its children sleeps on a lock"
        if len(threads) == 1
        else f"all {len(threads)} threads of it and its children sleep on locks"
    )
    helpers = "".join(f" ({p.after.name}, pid {p.pid}, only waits for it)" for p in _find_helpers(case, process))
    text = (
        f"{whole} without a timeout: none can wake another{helpers}"
        if closed
        else f"none of {format_count(len(threads), 'thread')} of it and its children does any work"
    )
    tops = tuple(Clue(f"pid {process.pid} is in {dump.top}", "stacks") for dump in case.dumps.get(process.pid, ())[-1:])
    sure = Confidence.CERTAIN if closed and case.overdue else Confidence.LIKELY
    return Detection(
        "H4", LiveClass.DEADLOCK, Answer.YES, sure, (clue, Clue(text, "two looks"), *tops, *case.progress.clues),
        facts={"pid": str(process.pid)},
    )  # fmt: skip


def _list_threads(case: Case, process: ProcessChange) -> list[ThreadChange]:
    """The living threads of a process and its children which another of them could be waiting for."""
    helpers = [helper.pid for helper in _find_helpers(case, process)]
    tree = [p for p in case.change.subtree(process.pid) if p.pid not in helpers]
    return [thread for p in tree for thread in p.threads if thread.after.state not in "ZX"]


def _find_helpers(case: Case, process: ProcessChange) -> list[ProcessChange]:
    """Writers of checkpoints below it that have nothing to do.

    Such a one answers on a socket only, when it was given a save: it wakes nobody who sleeps on a lock.
    """
    below = case.change.subtree(process.pid)[1:]
    return [p for p in below if is_writer(p) and p.is_idle and all(t.wait is Wait.POLL for t in p.threads)]


# -------------------------------------------------------------------------------------------------------- H5 busy


def detect_busy(case: Case) -> Detection:
    """H5: a CPU is burnt and no step comes of it. Without a heartbeat nobody can tell that from work."""
    if case.alive:
        return say_no("H5", LiveClass.BUSY_NO_PROGRESS, *case.progress.clues)
    pids = {p.pid for focus in case.focus() for p in case.change.subtree(focus.pid)}
    busy = [(p, t) for p in case.change.living if p.pid in pids for t in p.threads if t.is_busy]
    if not busy:
        return say_no("H5", LiveClass.BUSY_NO_PROGRESS)
    clues = tuple(_busy_clue(*pair) for pair in busy[:3])
    if all(_may_only_be_slow(case, thread) for _, thread in busy):
        text = "its threads mostly wait for a CPU: it may only be slow"
        return Detection("H5", LiveClass.BUSY_NO_PROGRESS, Answer.UNKNOWN, evidence_for=clues, unknown=(Clue(text),))
    if not case.overdue:
        text = "a CPU is in use and there is no heartbeat that says whether work comes of it"
        return Detection("H5", LiveClass.BUSY_NO_PROGRESS, Answer.UNKNOWN, evidence_for=clues, unknown=(Clue(text),))
    if case.cards_busy and not _cards_spin(case):
        return say_no("H5", LiveClass.BUSY_NO_PROGRESS, Clue("the cards are at work", "NVML"))
    process, _ = busy[0]
    same = find_same_place(case, process.pid)
    age = case.progress.age_s or 0.0
    return Detection(
        "H5",
        LiveClass.BUSY_NO_PROGRESS,
        Answer.YES,
        Confidence.LIKELY if age >= OLD_S or same else Confidence.POSSIBLE,
        (*clues, *same, *case.progress.clues),
        gotchas=("U21",),
        facts={"pid": str(process.pid), "frame": same[0].text if same else "unknown"},
    )


def _may_only_be_slow(case: Case, thread: ThreadChange) -> bool:
    """Whether waiting for a CPU explains the missing step: it makes steps so many times longer, and no more."""
    queued, age, limit = thread.queued_s or 0.0, case.progress.age_s, case.progress.limit_s
    if queued <= 2 * thread.ran_s:
        return False
    if age is None or limit is None:
        return True
    longer, step_s = (queued + thread.ran_s) / max(thread.ran_s, 1e-3), case.progress.step_s
    return age <= (limit * longer if step_s is None else max(limit, MANY_INTERVALS * step_s * longer))


def _busy_clue(process: ProcessChange, thread: ThreadChange) -> Clue:
    calls = "" if process.io is None else f", {process.io.calls} reads and writes"
    slept = "" if thread.voluntary is None else f", it went to sleep {format_count(thread.voluntary, 'time')}"
    waited = "" if not thread.queued_s else f" and waited {thread.queued_s:.1f} s for one"
    text = f"pid {process.pid} ({process.after.name}) thread {thread.after.tid} ran {thread.ran_s:.1f} s"
    return Clue(f"{text} of {thread.window_s:.1f} s on a CPU{waited}{slept}{calls}", f"/proc/{process.pid}/task")


def find_same_place(case: Case, pid: int) -> tuple[Clue, ...]:
    """That both stacks of a process are in one function, and where; nothing where they are not, or are not known."""
    dumps = case.dumps.get(pid, ())
    if len(dumps) < 2 or not dumps[0].top:
        return ()
    functions = {(dump.main[0].file, dump.main[0].function) for dump in dumps if dump.main}
    return (Clue(f"both stacks are in {dumps[-1].top}", "stacks"),) if len(functions) == 1 else ()


# ---------------------------------------------------------------------------------------------------- H11 exit hang


def detect_exit(case: Case) -> Detection:
    """H11: the work is done and said so, and the process does not end."""
    run = case.run.value
    done = run is not None and run.stop_why in LEAVING
    frames = [dump.main for dumps in case.dumps.values() for dump in dumps]
    ending = any(frame.function in SHUTDOWN_WORDS for main in frames for frame in main)
    if not (done or ending):
        if run is None:
            return say_unknown("H11", LiveClass.EXIT_HANG, case.run.unread)
        return say_no("H11", LiveClass.EXIT_HANG)
    if case.progress.pace is Pace.MOVING or not all(process.is_idle for process in case.focus()):
        return say_no("H11", LiveClass.EXIT_HANG, Clue("it still works"))
    clues = []
    if done:
        clues.append(Clue("the training said that it is finished", "stop.json"))
    if ending:
        clues.append(Clue("its main thread is in the interpreter's shutdown", "stacks"))
    sure = Confidence.LIKELY if ending or not case.alive else Confidence.POSSIBLE
    return Detection("H11", LiveClass.EXIT_HANG, Answer.YES, sure, tuple(clues))
