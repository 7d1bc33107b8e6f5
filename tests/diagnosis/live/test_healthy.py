"""A thousand looks at healthy runs, and not one of them is said to hang."""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from holdfast.diagnosis.live.detectors import fold, run_detectors
from holdfast.diagnosis.live.judge import Look, build_case, take_look
from holdfast.model.verdict import HANGS
from tests.diagnosis.live.bench import behaving
from tests.diagnosis.live.cases import (
    FUTEX,
    MOVING,
    POLL,
    READ,
    RECENT,
    SILENT,
    SLEEP,
    UNKNOWN,
    card,
    case,
    device,
    judge,
    pair,
    process,
    thread,
    tree,
)  # fmt: skip

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.diagnosis.live.case import Case

pytestmark = pytest.mark.requirement("DIAG-03", "DIAG-04", "DIAG-10", "MON-07")

CALM = ("long_step", "bursty", "buffered", "slow_reader")
CROWDED = ("slow_step", "loader", "silent_work", "storm")
APART_S, EVERY_S, LOOKS = 5.0, 0.25, 65


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize("modes", [CALM, CROWDED], ids=["calm", "crowded"])
def test_hundreds_of_looks_at_healthy_processes_raise_no_alarm(tmp_path: Path, modes: tuple[str, ...]) -> None:
    verdicts: Counter[tuple[str, str]] = Counter()
    alarms = []
    with ExitStack() as stack:
        targets = []
        for mode in modes:
            directory = tmp_path / mode
            directory.mkdir()
            targets.append(stack.enter_context(behaving(mode, directory)))
        earlier: list[deque[Look]] = [deque() for _ in targets]
        while sum(verdicts.values()) < LOOKS * len(modes):
            for target, looks in zip(targets, earlier, strict=True):
                looks.append(take_look(target))
                while len(looks) > 1 and looks[-1].tree.at_s - looks[1].tree.at_s >= APART_S:
                    looks.popleft()
                if looks[-1].tree.at_s - looks[0].tree.at_s < APART_S:
                    continue
                made = build_case(target, looks[0], looks[-1])
                verdict = fold(made, run_detectors(made))
                verdicts[target.name, verdict.kind.value] += 1
                if verdict.kind in HANGS:
                    alarms.append((target.name, verdict))
            time.sleep(EVERY_S)
    for (mode, kind), count in sorted(verdicts.items()):
        print(f"{mode:12} {kind:16} {count}")
    print(f"{sum(verdicts.values())} looks at real processes, {len(alarms)} alarms")
    assert not alarms, alarms[:3]


def healthy_case(seed: int) -> Case:
    """A healthy run by numbers: a main process at some work, workers, helpers, cards, neighbours."""
    draw = random.Random(seed)
    # Whoever gives no sign of progress at least works; whoever rests has told of a step.
    signs = draw.choice((MOVING, RECENT, replace(RECENT, starting=True, phase="save"), SILENT, UNKNOWN))
    works = signs in (SILENT, UNKNOWN)
    wchan, call = draw.choice((("futex_do_wait", FUTEX), ("do_sys_poll", POLL), ("anon_pipe_read", READ)))
    main = draw.choice(
        (
            pair(thread(10, "R"), ran=draw.uniform(0.3, 1.0), queued=draw.uniform(0, 0.5), wakes=draw.randrange(500)),
            pair(thread(10, "S", wchan, call), ran=draw.uniform(0.02, 0.4), wakes=draw.randrange(20, 5000)),
            pair(thread(10, "D", "folio_wait_bit_common", READ), ran=0.05, wakes=draw.randrange(20, 900)),
        )
    )
    if not works and draw.random() < 0.3:
        main = pair(thread(10, "S", "hrtimer_nanosleep", SLEEP))
    helpers = [
        pair(thread(100 + i, "S", "futex_do_wait", FUTEX), wakes=draw.choice((0, 1, 30)))
        for i in range(draw.randrange(30))
    ]
    workers = [
        process(20 + i, pair(thread(20 + i, "R"), ran=draw.uniform(0.1, 1.0), queued=draw.uniform(0, 1)), ppid=10)
        for i in range(draw.choice((0, 0, 4, 8)))
    ]
    cards = None
    if draw.random() < 0.7:
        # At the power cap the clocks are held down at full load: this is normal and no throttling.
        use = draw.choice((0.0, 30.0, 70.0, 97.0, 100.0))
        watts = draw.uniform(0.45, 1.0) * 400.0 if use > 50 else draw.uniform(60.0, 200.0)
        clock = draw.uniform(1100.0, 1980.0)
        cards = [card(utilisation_pct=use, power_w=watts, sm_clock_mhz=clock, memory_utilisation_pct=use / 2)]
    others = draw.uniform(0, 15)
    box = {"load": draw.uniform(0, 490), "others_cores": others, "busy_cores": others + 1}
    return case(tree(process(10, main, *helpers, files=device()), *workers), signs, cards=cards, box=box)


@pytest.mark.slow
@pytest.mark.pure
def test_a_thousand_healthy_runs_by_numbers_raise_no_alarm() -> None:
    verdicts: Counter[str] = Counter()
    for seed in range(1000):
        verdict = judge(healthy_case(seed))
        verdicts[verdict.kind.value] += 1
        assert verdict.kind not in HANGS, (seed, verdict)
    # A judge that always said the same would pass the line above.
    assert len(verdicts) >= 5, verdicts
