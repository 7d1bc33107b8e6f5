"""The detectors of slow and starved runs, S1 to S6, G7, G12, G13, and of the log that only looks frozen, H9. Pure.

All judgement is by the tree's own numbers; the host's serve as context only (U41). None of these is a hang: the run
moves, or nothing says that it does not.
"""

from __future__ import annotations

from holdfast.diagnosis.evidence import Answer, Detection
from holdfast.diagnosis.live.case import IDLE_CARD_PCT, Case
from holdfast.diagnosis.live.change import ProcessChange
from holdfast.model.units import format_count
from holdfast.model.verdict import Clue, Confidence, LiveClass

from .hangs import HIGH_UTILISATION_PCT, LOW_POWER_SHARE
from .progress import Pace
from .ranks import find_exchange, find_odd, read_ranks
from .waits import Wait

FALLBACK_AFTER_S = 300.0
STARVED_CARD_PCT = 70.0
MUCH_WAITING = 1.0
"""Threads that wait for a CPU as long as they run, or longer, have too few."""
LEAST_WAITING_CORES = 0.5
OWN_SHARE = 0.5
THROTTLED_SHARE = 0.25
STEAL_CORES = 0.1
FULL_PRESSURE = 0.10
NEARLY_FULL = 0.95
MANY_FAULTS_PER_S = 100.0
SLOWER = 0.7
BEHIND = 0.75
WAKES_PER_S = 1.0
LOG_SILENT_S = 30.0
QUIET_MAIN_SHARE = 0.5
STARVED_WORKERS = 1.5


def _clue(text: str, source: str = "two looks") -> Clue:
    return Clue(text, source)


def _detect(
    detector: str, kind: LiveClass, sure: Confidence, *clues: Clue, gotcha: str = "", **facts: str
) -> Detection:
    gotchas = (gotcha,) if gotcha else ()
    return Detection(detector, kind, Answer.YES, sure, clues, gotchas=gotchas, facts=facts)


def _no(detector: str, kind: LiveClass) -> Detection:
    return Detection(detector, kind, Answer.NO)


# --------------------------------------------------------------------------------------------- H9 the silent log


def detect_buffered(case: Case) -> Detection:
    """H9: the log stands still, the process does not; its output waits in a buffer."""
    progress, run = case.progress, case.run.value
    if run is None or run.log_at_s is None or progress.log_silent_s is None:
        return Detection("H9", LiveClass.BUFFERED, Answer.NOT_APPLICABLE)
    # A job that tells its steps elsewhere may well print nothing for a while; one that tells nothing has no other word.
    never = run.log_bytes == 0 and progress.pace is not Pace.MOVING
    silent = not progress.log_grew and (progress.log_silent_s >= LOG_SILENT_S or never)
    focus = case.focus()
    python = [process for process in focus if "python" in process.after.name or "python" in _command(process)]
    buffered = [process for process in python if _environment(process).get("PYTHONUNBUFFERED", "") == ""]
    unbuffered_flag = any(" -u" in _command(process).split("python", 1)[-1][:12] for process in buffered)
    if not silent or progress.pace is Pace.OVERDUE or not buffered or unbuffered_flag:
        return _no("H9", LiveClass.BUFFERED)
    # The main threads only: helpers tick on beside a main thread that hangs, and a busy loop is no sign of output.
    wakes = sum(process.deciding.voluntary or 0 for process in buffered if process.deciding is not None)
    moves = wakes >= WAKES_PER_S * case.change.window_s
    if not (progress.pace is Pace.MOVING or moves):
        return _no("H9", LiveClass.BUFFERED)
    clues = [
        _clue(f"the log has not grown for {progress.log_silent_s:.0f} s", "log"),
        _clue(f"its main thread went to sleep and woke {format_count(wakes, 'time')} meanwhile"),
        _clue("PYTHONUNBUFFERED is not set: Python keeps up to 8 KiB of output back", "environ"),
    ]
    if progress.pace is Pace.MOVING:
        clues += progress.clues
    sure = Confidence.LIKELY if progress.pace is Pace.MOVING or never else Confidence.POSSIBLE
    return Detection("H9", LiveClass.BUFFERED, Answer.YES, sure, tuple(clues), gotchas=("U43",))


def _command(process: ProcessChange) -> str:
    return process.after.command.value or ""


def _environment(process: ProcessChange) -> dict[str, str]:
    # An environment that cannot be read counts as one that has the variable: no claim is made from it.
    return process.after.environment.value if process.after.environment.value is not None else {"PYTHONUNBUFFERED": "?"}


# ------------------------------------------------------------------------------------------------- S1 data loader


def detect_loader(case: Case) -> Detection:
    """S1: the main process waits for its workers, and these work or read."""
    if not case.alive:
        return _no("S1", LiveClass.LOADER_BOUND)
    use = case.card_values("utilisation_pct")
    if use and min(use) >= STARVED_CARD_PCT:
        return _no("S1", LiveClass.LOADER_BOUND)
    for process in case.focus():
        main, workers = process.deciding, case.change.children(process.pid)
        if main is None or not workers:
            continue
        waits = case.kind_of_wait(main) in (Wait.PIPE, Wait.POLL, Wait.FUTEX) or main.before.wait is not Wait.RUNNING
        busy = [worker for worker in workers if any(thread.is_busy for thread in worker.threads)]
        reading = [w for w in workers if w.deciding is not None and _reads(w)]
        limit = QUIET_MAIN_SHARE if use else QUIET_MAIN_SHARE / 2
        if not waits or main.wanted_share > limit or len(busy) + len(reading) < max(1, len(workers) // 2):
            continue
        if busy and sum(w.queued_s or 0.0 for w in busy) > STARVED_WORKERS * sum(w.ran_s for w in busy):
            # They hardly get a CPU: that is why they are slow, and more of them would not help.
            continue
        what = "read from storage" if len(reading) > len(busy) else "are busy on the CPU"
        clues = [
            _clue(f"pid {process.pid} used {main.share:.0%} of a CPU and mostly waits, {len(workers)} workers {what}"),
            *case.progress.clues,
        ]
        if use:
            clues.append(_clue(f"card utilisation was {min(use):.0f} to {max(use):.0f} %", "NVML"))
        gotcha = "U8" if len(reading) > len(busy) else "U24"
        return _detect("S1", LiveClass.LOADER_BOUND, Confidence.LIKELY, *clues, gotcha=gotcha, what=what)
    return _no("S1", LiveClass.LOADER_BOUND)


def _reads(worker: ProcessChange) -> bool:
    deciding = worker.deciding
    storage = (Wait.STORAGE, Wait.NFS, Wait.FUSE)
    if deciding is None or deciding.after.wait not in storage:
        return False
    return deciding.after.state == "D" or deciding.after.wait is not Wait.STORAGE


# --------------------------------------------------------------------------- S2 oversubscription, S3 neighbours


def _waiting_cores(case: Case) -> float | None:
    queued = case.change.queued_s
    return None if queued is None else queued / case.change.window_s


def detect_oversubscribed(case: Case) -> Detection:
    """S2: more threads want to run than the quota or the allowed CPUs give."""
    waiting = _waiting_cores(case)
    if waiting is None:
        text = "schedstat is not readable: how long threads waited for a CPU is not known"
        return Detection("S2", LiveClass.OVERSUBSCRIBED, Answer.UNKNOWN, unknown=(_clue(text),))
    allowed = case.box.allowed_cpus or float(case.box.cpus)
    wanted = sum(1 for thread in case.change.threads if thread.is_busy)
    throttled = case.box.throttled_share or 0.0
    # Where others have the CPUs, fewer threads of ours would change nothing.
    ours = case.change.cores >= OWN_SHARE * allowed
    crowd = (
        ours and wanted > 2 * allowed and waiting >= LEAST_WAITING_CORES and waiting >= MUCH_WAITING * case.change.cores
    )
    held = throttled >= THROTTLED_SHARE and wanted > allowed
    if not (crowd or held):
        return _no("S2", LiveClass.OVERSUBSCRIBED)
    clues = [
        _clue(f"{wanted} threads want to run on {allowed:g} CPUs"),
        _clue(f"they ran {case.change.cores:.2f} and waited {waiting:.2f} seconds in each second", "schedstat"),
    ]
    if throttled:
        clues.append(_clue(f"the CPU quota held the group back in {throttled:.0%} of its periods", "cpu.stat"))
    threads = {_environment(process).get("OMP_NUM_THREADS", "not set") for process in case.focus()} - {"?"}
    if threads:
        clues.append(_clue(f"OMP_NUM_THREADS is {', '.join(sorted(threads))}", "environ"))
    return _detect(
        "S2",
        LiveClass.OVERSUBSCRIBED,
        Confidence.LIKELY,
        *clues,
        wanted=str(wanted),
        allowed=f"{allowed:g}",
        gotcha="U40",
    )


def detect_neighbour(case: Case) -> Detection:
    """S3: its threads wait for a CPU although its own quota is free: others use the box."""
    waiting, box = _waiting_cores(case), case.box
    if waiting is None:
        text = "schedstat is not readable: how long threads waited for a CPU is not known"
        return Detection("S3", LiveClass.NOISY_NEIGHBOUR, Answer.UNKNOWN, unknown=(_clue(text),))
    stolen = (box.steal_cores or 0.0) >= STEAL_CORES * box.cpus
    allowed = box.allowed_cpus or float(box.cpus)
    wanted = sum(1 for thread in case.change.threads if thread.is_busy)
    if box.throttled_share and box.throttled_share >= THROTTLED_SHARE:
        return _no("S3", LiveClass.NOISY_NEIGHBOUR)
    starved = waiting >= LEAST_WAITING_CORES and waiting >= 0.3 * case.change.cores and wanted <= 2 * allowed
    others = box.others_cores is not None and box.others_cores >= 0.25 * box.cpus
    if not (starved and (others or stolen)) and not (stolen and wanted):
        return _no("S3", LiveClass.NOISY_NEIGHBOUR)
    clues = [_clue(f"its threads waited {waiting:.2f} s for a CPU in each second, ran {case.change.cores:.2f} s")]
    if box.others_cores is not None:
        cpus = format_count(box.cpus, "CPU")
        clues.append(_clue(f"others used {box.others_cores:.1f} of the box's {cpus}", "/proc/stat"))
    if box.load is not None:
        clues.append(_clue(f"the host's load is {box.load:.0f} (context only)", "/proc/loadavg"))
    if stolen:
        clues.append(_clue(f"the hypervisor took {box.steal_cores:.1f} CPUs away", "/proc/stat, steal"))
    if box.throttled_share is not None:
        clues.append(_clue(f"its own quota held it back in {box.throttled_share:.0%} of the periods only", "cpu.stat"))
    if not case.alive:
        clues.append(
            _clue("that is so; whether it gets on at all cannot be seen, and a loop without end looks the same")
        )
    sure = Confidence.LIKELY if case.alive else Confidence.POSSIBLE
    return _detect("S3", LiveClass.NOISY_NEIGHBOUR, sure, *clues, gotcha="U41")


def detect_thrashing(case: Case) -> Detection:
    """S4: memory is so short that the kernel reads back what it just threw out."""
    box = case.box
    full = max((box.pressure.get("memory.full"), box.group_memory_full), key=lambda value: value or 0.0)
    rate = case.change.major_faults / case.change.window_s
    short = (box.memory_share or 0.0) >= NEARLY_FULL or bool(box.reclaims)
    if rate < MANY_FAULTS_PER_S or not (short or (full or 0.0) >= FULL_PRESSURE):
        if full is None and rate >= MANY_FAULTS_PER_S:
            text = "pages are read back from disk, and memory pressure is not readable"
            return Detection("S4", LiveClass.THRASHING, Answer.UNKNOWN, unknown=(_clue(text),))
        return _no("S4", LiveClass.THRASHING)
    clues = [_clue(f"{rate:.0f} page faults a second met the disk", "/proc/P/stat")]
    if full is not None:
        clues.append(_clue(f"everybody stalled on memory {full:.0%} of the time", "memory pressure"))
    if box.memory_share is not None:
        clues.append(_clue(f"its group uses {box.memory_share:.0%} of its memory limit", "cgroup"))
    return _detect("S4", LiveClass.THRASHING, Confidence.LIKELY, *clues)


# ------------------------------------------------------------------------------------------------------- the cards


def detect_throttled(case: Case) -> Detection:
    """G7: a hard reason holds the clocks of a working card down in every reading."""
    readings = case.cards.value or ()
    if not readings:
        return _cards_unread(case, "G7", LiveClass.GPU_THROTTLED)
    if any(card.throttle is None for reading in readings for card in reading):
        text = "why the clocks are as they are is not readable"
        return Detection("G7", LiveClass.GPU_THROTTLED, Answer.UNKNOWN, unknown=(_clue(text, "NVML"),))
    always = set.intersection(*({card.name for card in reading if card.throttle} for reading in readings))
    if not always:
        return _no("G7", LiveClass.GPU_THROTTLED)
    card = next(card for card in readings[-1] if card.name in always)
    if card.utilisation_pct is not None and card.utilisation_pct <= IDLE_CARD_PCT:
        return _no("G7", LiveClass.GPU_THROTTLED)
    clock = "" if card.clock_share is None else f", its clock is at {card.clock_share:.0%} of its maximum"
    clue = _clue(f"{card.name} is held back by {', '.join(card.throttle or ())}{clock}", "NVML")
    return _detect("G7", LiveClass.GPU_THROTTLED, Confidence.LIKELY, clue, card=card.name)


def detect_underfed(case: Case) -> Detection:
    """G13: utilisation says full, power says little: small kernels or waiting. Advice, no alarm."""
    if not case.alive:
        return _no("G13", LiveClass.GPU_UNDERFED)
    use, power = case.card_values("utilisation_pct"), case.card_values("power_share")
    if not use or not power:
        return _cards_unread(case, "G13", LiveClass.GPU_UNDERFED)
    if min(use) < HIGH_UTILISATION_PCT or max(power) >= LOW_POWER_SHARE:
        return _no("G13", LiveClass.GPU_UNDERFED)
    clue = _clue(f"utilisation {min(use):.0f} % at {max(power):.0%} of the power limit", "NVML")
    return _detect("G13", LiveClass.GPU_UNDERFED, Confidence.POSSIBLE, clue, *case.progress.clues, gotcha="U21")


def detect_cpu_fallback(case: Case) -> Detection:
    """G12: cards are leased, none of the processes is on one, and the CPU does the work."""
    if not case.target.cards:
        return Detection("G12", LiveClass.CPU_FALLBACK, Answer.NOT_APPLICABLE)
    young = case.job_age_s is None or case.job_age_s < FALLBACK_AFTER_S
    if young or case.change.cores < 0.9:
        return _no("G12", LiveClass.CPU_FALLBACK)
    readings = case.cards.value or ()
    present = [card.ours_present for reading in readings for card in reading]
    nodes = _opens_device(case)
    if nodes or True in present:
        return _no("G12", LiveClass.CPU_FALLBACK)
    if nodes is None or not present or None in present:
        text = "whether a process of the run uses a card is not readable"
        return Detection("G12", LiveClass.CPU_FALLBACK, Answer.UNKNOWN, unknown=(_clue(text),))
    visible = {_environment(process).get("CUDA_VISIBLE_DEVICES") for process in case.focus()}
    clues = [
        _clue(f"no process of the run is on a card after {case.job_age_s or 0:.0f} s", "NVML, /proc/P/fd"),
        _clue(f"the run uses {case.change.cores:.1f} CPUs"),
    ]
    if visible & {"", "-1"}:
        clues.append(_clue("CUDA_VISIBLE_DEVICES hides every card", "environ"))
    return _detect("G12", LiveClass.CPU_FALLBACK, Confidence.LIKELY, *clues, gotcha="U31")


def _opens_device(case: Case) -> bool | None:
    """Whether a process of the tree has a card's device node open; None when not all of them can be looked at."""
    seen = True
    for process in case.change.living:
        files = process.after.files
        if files.value is None:
            seen = False
            continue
        if any(file.target.startswith("/dev/nvidia") and file.target[11:].isdigit() for file in files.value):
            return True
    return False if seen else None


def detect_cpu_bound(case: Case) -> Detection:
    """U38: the card idles while the job computes on the CPU: slow, not dead."""
    use = case.card_values("utilisation_pct")
    if not use or not case.alive or max(use) > IDLE_CARD_PCT or case.change.cores < QUIET_MAIN_SHARE:
        return _no("S1c", LiveClass.CPU_BOUND)
    clue = _clue(f"the cards are at most {max(use):.0f} % busy while the run uses {case.change.cores:.1f} CPUs", "NVML")
    return _detect("S1c", LiveClass.CPU_BOUND, Confidence.LIKELY, clue, *case.progress.clues, gotcha="U38")


def _cards_unread(case: Case, detector: str, kind: LiveClass) -> Detection:
    if not case.target.cards:
        return Detection(detector, kind, Answer.NOT_APPLICABLE)
    why = case.cards.unread or "the card does not tell its utilisation or power"
    return Detection(detector, kind, Answer.UNKNOWN, unknown=(_clue(why, "NVML"),))


# ----------------------------------------------------------------------------------------- S5 straggler, S6 history


def detect_straggler(case: Case) -> Detection:
    """S5: one rank is slower than most, by the ranks' own rates."""
    run = case.run.value
    rates: dict[int, float] = {}
    for name, beat in ({} if run is None else {"0": run.heartbeat, **run.rank_beats}).items():
        rate = beat.get("steps_per_s")
        if name.isdigit() and isinstance(rate, (int, float)) and rate > 0:
            rates[int(name)] = float(rate)
    if len(rates) < 3 or len(read_ranks(case)) < 3:
        return _find_waited_for(case)
    usual = sorted(rates.values())[len(rates) // 2]
    slow = {rank: rate for rank, rate in rates.items() if rate < BEHIND * usual}
    if not slow or len(slow) > len(rates) // 3:
        return _no("S5", LiveClass.STRAGGLER)
    slowest = min(slow, key=lambda rank: slow[rank])
    clue = _clue(f"rank {slowest} does {slow[slowest]:.3g} steps a second, most do {usual:.3g}", "heartbeats")
    return _detect("S5", LiveClass.STRAGGLER, Confidence.LIKELY, clue, who=str(slowest))


def _find_waited_for(case: Case) -> Detection:
    """Without the ranks' rates: the one that the others wait for while they all exchange bytes."""
    ranks = read_ranks(case)
    odd, exchange = find_odd(ranks), find_exchange(case)
    if case.alive or exchange is None or len(ranks) < 3 or len(odd) != 1:
        return Detection("S5", LiveClass.STRAGGLER, Answer.NOT_APPLICABLE)
    clues = [_clue(rank.describe(), f"/proc/{rank.pid}") for rank in ranks[:8]]
    return _detect("S5", LiveClass.STRAGGLER, Confidence.POSSIBLE, *clues, exchange, who=str(odd[0].rank))


def detect_slower(case: Case) -> Detection:
    """S6: fewer steps a second than the same configuration did earlier."""
    usual, run = case.target.usual_steps_per_s, case.run.value
    if not usual:
        return Detection("S6", LiveClass.SLOWER_THAN_BEFORE, Answer.NOT_APPLICABLE)
    rate = None if run is None else run.heartbeat.get("steps_per_s")
    if not isinstance(rate, (int, float)) or not case.alive or case.progress.starting:
        return Detection("S6", LiveClass.SLOWER_THAN_BEFORE, Answer.UNKNOWN, unknown=(_clue("no rate of steps now"),))
    if rate >= SLOWER * usual:
        return _no("S6", LiveClass.SLOWER_THAN_BEFORE)
    clue = _clue(f"{rate:.3g} steps a second now, {usual:.3g} in earlier runs of this configuration", "heartbeat")
    return _detect("S6", LiveClass.SLOWER_THAN_BEFORE, Confidence.LIKELY, clue)
