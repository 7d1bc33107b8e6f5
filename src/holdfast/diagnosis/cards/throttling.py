"""Clocks, heat and load of one card, from several readings: held back, hot, or busy with nothing (GPUH-05, GPUH-06).

Which reasons are bad: heat and the power brake are; the power cap is what every card at full load runs into, and is
worth a word only when the card draws little; idle clocks and somebody's clock setting are no fault at all.

Sources: nvml.h, nvmlClocksEventReason*; github.com/Azure/azurehpc issue 595 and github.com/mlfoundations/open_clip
issue 703 for the power cap at full load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.model.finding import Finding, Level
from holdfast.model.gpu import CLOCK_LIMITS, IDLE_CLOCKS, Card

HEAT = 0x8 | 0x20 | 0x40 | 0x80
"""Hardware slowdown, thermal slowdown by software and by hardware, power brake."""
POWER_CAP = 0x4
ENOUGH_SAMPLES = 10
"""Reasons come and go between two readings; with fewer a verdict would be chance."""
ENOUGH_SHARE = 0.1
"""Held back in this part of the readings, or of the time by the counters, is more than a passing moment."""
A_MOMENT = 0.005
"""A smaller part of the time by the counter is no finding: it was lost at some peak, and costs nothing."""
FULL_LOAD_PCT = 90
LOAD_SAMPLES = 5
LOW_POWER_SHARE = 0.4
"""Of the limit: below it a card that is always "busy" computes little."""
FULL_POWER_SHARE = 0.8
LOW_CLOCK_SHARE = 0.7
HOT_C, WARM_C = 83, 75
"""Only for cards that tell no limit of their own."""
NEAR_LIMIT_C = 2
THROTTLED = "another card or box; results of this run are slower than they should be, which is no regression"
COOL = "see to the cooling, or choose another card"


def judge_throttling(
    samples: Sequence[Card], before: Card | None, now: Card, name: str, elapsed_s: float
) -> Iterator[Finding]:
    """What holds the clocks back, by the readings and by the driver's counters of lost time."""
    known = [sample for sample in samples if sample.clock_reasons is not None]
    counted = _share_of_time(before, now, elapsed_s)
    if not known and counted is None:
        if "clock_reasons" not in now.unsupported:
            words = "what limits the clocks could not be read"
            yield Finding("gpu.throttle", Level.UNKNOWN, name, words, "look at `nvidia-smi -q -d PERFORMANCE`")
        return
    held = [sample for sample in known if (sample.clock_reasons or 0) & HEAT]
    names = _name_reasons(held, HEAT)
    if len(known) >= ENOUGH_SAMPLES and len(held) > 1 and len(held) / len(known) >= ENOUGH_SHARE:
        words = f"held back in {len(held)} of {len(known)} readings: {names}{_numbers(held)}"
        yield Finding("gpu.throttle", Level.FAIL, name, words, THROTTLED)
    elif counted is not None and counted >= ENOUGH_SHARE:
        words = f"held back by heat for {counted:.0%} of {elapsed_s:.0f} s, by the driver's counter"
        yield Finding("gpu.throttle", Level.FAIL, name, words, THROTTLED)
    elif held or (counted is not None and counted >= A_MOMENT):
        seen = (
            f"{len(held)} of {len(known)} readings: {names}{_numbers(held)}" if held else f"{counted:.1%} of the time"
        )
        yield Finding("gpu.throttle", Level.WARN, name, f"held back in {seen}; too little to be sure", THROTTLED)
    else:
        yield _judge_power_cap(known, name)


def _share_of_time(before: Card | None, now: Card, elapsed_s: float) -> float | None:
    """The part of the time between two readings that was lost to heat; None without two counters of one driver load."""
    if before is None or before.thermal_violation_ns is None or now.thermal_violation_ns is None or elapsed_s <= 0:
        return None
    lost_ns = now.thermal_violation_ns - before.thermal_violation_ns
    return min(lost_ns / 1e9 / elapsed_s, 1.0) if lost_ns >= 0 else None


def _name_reasons(samples: Sequence[Card], mask: int) -> str:
    bits = 0
    for sample in samples:
        bits |= (sample.clock_reasons or 0) & mask
    return ", ".join(name for bit, name in CLOCK_LIMITS.items() if bits & bit)


def _numbers(samples: Sequence[Card]) -> str:
    """Temperature and SM clock in those readings, as far as they are known."""
    hottest = max((sample.temperature_c for sample in samples if sample.temperature_c is not None), default=None)
    clocks = [sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz is not None]
    words = "" if hottest is None else f", up to {hottest} °C"
    return words + (f", SM clock down to {min(clocks)} MHz" if clocks else "")


def _judge_power_cap(samples: Sequence[Card], name: str) -> Finding:
    """The power cap alone: normal at full draw, odd when the card draws little."""
    capped = [sample for sample in samples if (sample.clock_reasons or 0) & POWER_CAP]
    if not capped:
        idle = samples and all((sample.clock_reasons or 0) & IDLE_CLOCKS for sample in samples)
        other = _name_reasons(samples, ~(HEAT | POWER_CAP | IDLE_CLOCKS))
        words = "idle clocks, nothing holds it back" if idle else f"nothing but {other}" if other else "not held back"
        return Finding("gpu.throttle", Level.PASS, name, words)
    shares = [share for share in (_power_share(sample) for sample in capped) if share is not None]
    words = f"the power cap in {len(capped)} of {len(samples)} readings"
    if shares and mean(shares) >= FULL_POWER_SHARE:
        words += f" at {mean(shares):.0%} of the power limit: normal at full load"
        return Finding("gpu.throttle", Level.PASS, name, words)
    drawn = f" at only {mean(shares):.0%} of the power limit" if shares else "; its power draw is not known"
    return Finding("gpu.throttle", Level.WARN, name, words + drawn, "see whether the box limits the power of its cards")


def _power_share(card: Card) -> float | None:
    if card.power_w is None or not card.power_limit_w:
        return None
    return card.power_w / card.power_limit_w


def judge_temperature(samples: Sequence[Card], name: str) -> Iterator[Finding]:
    """Heat against the card's own limits; fixed ones only where it tells none."""
    seen = [sample for sample in samples if sample.temperature_c is not None]
    if not seen:
        if "temperature_c" not in samples[-1].unsupported:
            yield Finding("gpu.temperature", Level.UNKNOWN, name, "its temperature could not be read", COOL)
        return
    hottest = max(seen, key=lambda sample: sample.temperature_c or 0)
    celsius = hottest.temperature_c or 0
    limits = [limit for limit in (hottest.slowdown_c, hottest.gpu_max_c) if limit]
    if limits:
        limit = min(limits)
        words = f"{celsius} °C, its own limit is {limit} °C"
        level = Level.FAIL if celsius >= max(limits) else Level.WARN if celsius > limit - NEAR_LIMIT_C else Level.PASS
    else:
        words = f"{celsius} °C; the card tells no limit"
        level = _grade_without_limits(celsius, slow=_is_slow(hottest))
    yield Finding("gpu.temperature", level, name, words, "" if level is Level.PASS else COOL)


def _grade_without_limits(celsius: int, *, slow: bool) -> Level:
    if celsius >= HOT_C:
        return Level.FAIL if slow else Level.WARN
    return Level.WARN if celsius >= WARM_C and slow else Level.PASS


def _is_slow(card: Card) -> bool:
    """Whether a busy card clocks well below what it can. The idle bit explains a low clock."""
    if card.sm_clock_mhz is None or not card.sm_clock_max_mhz or (card.utilisation_pct or 0) < FULL_LOAD_PCT:
        return False
    return card.sm_clock_mhz < LOW_CLOCK_SHARE * card.sm_clock_max_mhz and not (card.clock_reasons or 0) & IDLE_CLOCKS


def judge_load(samples: Sequence[Card], name: str) -> Iterator[Finding]:
    """Utilisation says only that something ran: with little power and a low clock, or idle memory, it was little."""
    used = [sample.utilisation_pct for sample in samples if sample.utilisation_pct is not None]
    if not used:
        if "utilisation_pct" not in samples[-1].unsupported and not samples[-1].mig_enabled:
            yield Finding("gpu.load", Level.UNKNOWN, name, "its utilisation could not be read", "")
        return
    if mean(used) < FULL_LOAD_PCT:
        yield Finding("gpu.load", Level.PASS, name, f"{mean(used):.0f} % utilisation")
        return
    shares = [share for share in (_power_share(sample) for sample in samples) if share is not None]
    if len(used) < LOAD_SAMPLES or len(shares) < LOAD_SAMPLES:
        words = f"{mean(used):.0f} % utilisation; too few readings with power to tell whether that is work"
        yield Finding("gpu.load", Level.UNKNOWN, name, words, "look for some seconds: `holdfast gpus health`")
        return
    clock = mean_share([(sample.sm_clock_mhz, sample.sm_clock_max_mhz) for sample in samples])
    memory = [sample.memory_utilisation_pct for sample in samples if sample.memory_utilisation_pct is not None]
    words = f"{mean(used):.0f} % utilisation, {mean(shares):.0%} of the power limit"
    words += f", SM clock at {clock:.0%} of its maximum" if clock is not None else ""
    words += f", memory {mean(memory):.0f} % busy" if memory else ""
    low_clock = clock is not None and clock < LOW_CLOCK_SHARE
    idle_memory = clock is None and bool(memory) and mean(memory) < 10
    if mean(shares) < LOW_POWER_SHARE and (low_clock or idle_memory):
        action = (
            "see what the job waits for (`holdfast diagnose`): small kernels, the loader, or a collective that spins"
        )
        yield Finding("gpu.load", Level.WARN, name, f"underfed or spinning: {words}", action)
    else:
        yield Finding("gpu.load", Level.PASS, name, words)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean of at least one value; the module `statistics` would cost more to load than all of this."""
    return sum(values) / len(values)


def mean_share(pairs: Sequence[tuple[int | None, int | None]]) -> float | None:
    """The mean of value by maximum over the pairs in which both are known."""
    shares = [value / most for value, most in pairs if value is not None and most]
    return mean(shares) if shares else None
