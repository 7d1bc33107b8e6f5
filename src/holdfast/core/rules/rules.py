"""The rules file's content: what the people of one box agreed on, which no job may exceed (ETIQ-09).

One small file, read by every run: a strict subset of TOML (``key = value`` with strings, numbers, booleans and
one-line lists, sections, comments) or a JSON object. Strict on purpose: a misspelled key that is ignored is a rule
that is not kept. `parse_rules` reads the text, `apply_rules` holds a job to it. A job is never refused for asking too
much where a smaller answer is as good: it is clamped, and a finding names the rule.

Pure: finding and trusting the file is `host.files.rules_file`'s part, knowing the time the caller's.
"""

from __future__ import annotations

import re
from typing import TypeVar

from holdfast.model.finding import Finding, Level
from holdfast.model.gpu import CardRules
from holdfast.model.job import JobSpec, Priority
from holdfast.model.record import field, record, replace
from holdfast.model.units import format_bytes, format_count, format_duration, parse_bytes, parse_duration

from .text import RulesError, parse_pairs

DAY_MINUTES = 24 * 60
XID_SECTION = "xid."
XID_SEVERITIES = frozenset({"app", "watch", "card", "host", "ask"})
"""What a Xid may be said to ask for; `diagnosis.kernel.xids.Severity` says what each leads to."""
Number = TypeVar("Number", int, float)
__all__ = ["Rules", "RulesError", "apply_rules", "card_rules", "combine_rules", "judge_hours", "parse_rules"]


@record
class Rules:
    """The rules in force; the defaults are those of a box without a rules file. Seconds, bytes, percent.

    `allowed_hours` are (begin, end) minutes since local midnight during which jobs that take cards may start; an end
    at or before its begin lies on the next day; empty is "always"; `quiet_times` are the spans in which they may not.
    `None` is "no such limit". `sources` are the files. `xids` are severities that go before those of our table, by
    code. What is meant for one account (`cards_per_user` and so on) is judged by `core.cards.shares`.
    """

    lease_dir: str | None = None
    min_free_bytes: int | None = None
    max_hold_s: float | None = None
    grace_max_s: float | None = None
    max_wait_s: float | None = None
    max_cards: int | None = None
    nice: int = 10
    allow_normal_priority: bool = True
    allowed_hours: tuple[tuple[int, int], ...] = ()
    idle_utilisation_pct: int | None = None
    idle_used_bytes: int | None = None
    sources: tuple[str, ...] = ()
    xids: dict[int, str] = field(default_factory=dict)
    cards_per_user: int | None = None
    max_cards_per_user: int | None = None
    hours_per_week: float | None = None
    hours_per_week_max: float | None = None
    starve_after_s: float | None = None
    quiet_times: tuple[tuple[int, int], ...] = ()
    reserve_max_s: float | None = None
    reserve_cards_max: int | None = None


def parse_rules(text: str, source: str = "rules") -> Rules:
    """The rules in a file's text.

    Raises:
        RulesError: a line is malformed, a key unknown or given twice, or a value out of its range.
    """
    pairs = parse_pairs(text, source)
    fields: dict[str, object] = {}
    xids: dict[int, str] = {}
    for key, (value, where) in pairs.items():
        if key.startswith(XID_SECTION):
            code, severity = _read_xid(key.removeprefix(XID_SECTION), value, where)
            xids[code] = severity
            continue
        if key not in _READERS:
            import difflib  # a supervisor loads this file

            near = difflib.get_close_matches(key, _READERS, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(_READERS))}"
            raise RulesError(f"{where}: unknown rule {key!r}{hint}")
        name, read = _READERS[key]
        try:
            fields[name] = read(value)
        except (ValueError, TypeError) as error:
            raise RulesError(f"{where}: {key}: {error}") from error
    return replace(Rules(sources=(source,), xids=xids), **fields)  # type: ignore[arg-type]  # each reader gives its field's type


def _read_xid(code: str, value: object, where: str) -> tuple[int, str]:
    """One line of ``[xid]``. A code that our table lacks is taken: a newer driver may have it."""
    if not re.fullmatch(r"[1-9][0-9]{0,2}", code):
        raise RulesError(f"{where}: a Xid is a whole number from 1 to 999, found {code!r}")
    if not isinstance(value, str) or value not in XID_SEVERITIES:
        known = ", ".join(sorted(XID_SEVERITIES))
        raise RulesError(f"{where}: Xid {code}: {value!r} is no severity; known are {known}")
    return int(code), value


def _read_text(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("/"):
        raise ValueError(f"expected an absolute path in quotes, found {value!r}")
    return value.rstrip("/") or "/"


def _read_seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise TypeError(f'expected a duration such as "24h", found {value!r}')
    return parse_duration(value)


def _read_bytes(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise TypeError(f'expected a size such as "10GB", found {value!r}')
    return parse_bytes(value)


def _read_switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, found {value!r}")
    return value


def _read_whole(value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"expected a whole number from {low} to {high}, found {value!r}")
    return value


def _read_nice(value: object) -> int:
    return _read_whole(value, 0, 19)


def _read_count(value: object) -> int:
    return _read_whole(value, 1, 1_000_000)


def _read_hours_of_use(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1_000_000:
        raise ValueError(f"expected a number of GPU-hours, such as 200, found {value!r}")
    return float(value)


def _read_percent(value: object) -> int:
    return _read_whole(value, 0, 100)


def _read_hours(value: object) -> tuple[tuple[int, int], ...]:
    spans = value if isinstance(value, list) else [value]
    hours = []
    for span in spans:
        match = re.fullmatch(r"\s*(\d{1,2}):(\d\d)\s*-\s*(\d{1,2}):(\d\d)\s*", str(span), re.ASCII)
        numbers = [int(group) for group in match.groups()] if match else []
        if not numbers or max(numbers[0::2]) > 24 or max(numbers[1::2]) > 59:
            raise ValueError(f'expected hours such as "20:00-08:00", found {span!r}')
        begin, end = numbers[0] * 60 + numbers[1], numbers[2] * 60 + numbers[3]
        if max(begin, end) > DAY_MINUTES:
            raise ValueError(f'expected hours such as "20:00-08:00", found {span!r}')
        hours.append((begin % DAY_MINUTES, end))
    return tuple(hours)


_READERS = {
    "lease_dir": ("lease_dir", _read_text),
    "min_free": ("min_free_bytes", _read_bytes),
    "max_hold": ("max_hold_s", _read_seconds),
    "grace_max": ("grace_max_s", _read_seconds),
    "max_wait": ("max_wait_s", _read_seconds),
    "max_cards": ("max_cards", _read_count),
    "nice": ("nice", _read_nice),
    "allow_normal_priority": ("allow_normal_priority", _read_switch),
    "allowed_hours": ("allowed_hours", _read_hours),
    "quiet_times": ("quiet_times", _read_hours),
    "reserve_max": ("reserve_max_s", _read_seconds),
    "reserve_cards_max": ("reserve_cards_max", _read_count),
    "share.cards_per_user": ("cards_per_user", _read_count),
    "share.max_cards_per_user": ("max_cards_per_user", _read_count),
    "share.hours_per_week": ("hours_per_week", _read_hours_of_use),
    "share.hours_per_week_max": ("hours_per_week_max", _read_hours_of_use),
    "share.starve_after": ("starve_after_s", _read_seconds),
    "idle.max_utilisation": ("idle_utilisation_pct", _read_percent),
    "idle.max_used": ("idle_used_bytes", _read_bytes),
}


def combine_rules(machine: Rules, other: Rules) -> Rules:
    """The stricter of two rule sets, limit by limit; places, windows and Xids of `machine` win where it has them."""
    return Rules(
        lease_dir=machine.lease_dir or other.lease_dir,
        min_free_bytes=machine.min_free_bytes if machine.min_free_bytes is not None else other.min_free_bytes,
        max_hold_s=_smaller(machine.max_hold_s, other.max_hold_s),
        grace_max_s=_smaller(machine.grace_max_s, other.grace_max_s),
        max_wait_s=_smaller(machine.max_wait_s, other.max_wait_s),
        max_cards=_smaller(machine.max_cards, other.max_cards),
        nice=max(machine.nice, other.nice),
        allow_normal_priority=machine.allow_normal_priority and other.allow_normal_priority,
        allowed_hours=machine.allowed_hours or other.allowed_hours,
        idle_utilisation_pct=_smaller(machine.idle_utilisation_pct, other.idle_utilisation_pct),
        idle_used_bytes=_smaller(machine.idle_used_bytes, other.idle_used_bytes),
        sources=machine.sources + other.sources,
        xids={**other.xids, **machine.xids},
        cards_per_user=_smaller(machine.cards_per_user, other.cards_per_user),
        max_cards_per_user=_smaller(machine.max_cards_per_user, other.max_cards_per_user),
        hours_per_week=_smaller(machine.hours_per_week, other.hours_per_week),
        hours_per_week_max=_smaller(machine.hours_per_week_max, other.hours_per_week_max),
        # How long others may be made to wait is nobody's own to say.
        starve_after_s=machine.starve_after_s if machine.sources else other.starve_after_s,
        quiet_times=tuple(dict.fromkeys(machine.quiet_times + other.quiet_times)),
        reserve_max_s=_smaller(machine.reserve_max_s, other.reserve_max_s),
        reserve_cards_max=_smaller(machine.reserve_cards_max, other.reserve_cards_max),
    )


def _smaller(first: Number | None, second: Number | None) -> Number | None:
    return min((item for item in (first, second) if item is not None), default=None)


def card_rules(spec: JobSpec, rules: Rules) -> CardRules:
    """The limits by which a card is judged for this job under these rules; a job may ask for more room only."""
    standard = CardRules()
    floor = standard.min_free_bytes if rules.min_free_bytes is None else rules.min_free_bytes
    asked = spec.gpu.memory_bytes if spec.gpu.min_free_bytes is None else spec.gpu.min_free_bytes
    if asked is not None:
        floor = asked if rules.min_free_bytes is None else max(asked, floor)
    used, busy = rules.idle_used_bytes, rules.idle_utilisation_pct
    return CardRules(
        min_free_bytes=floor,
        max_utilisation_pct=standard.max_utilisation_pct if busy is None else busy,
        max_used_bytes=standard.max_used_bytes if used is None else used,
        share=spec.gpu.share,
    )


def apply_rules(spec: JobSpec, rules: Rules) -> tuple[JobSpec, tuple[Finding, ...]]:
    """The job as these rules allow it, and a finding for each thing that was cut or that they forbid."""
    findings: list[Finding] = []
    gpu = spec.gpu
    source = ", ".join(rules.sources) or "the rules"
    # What is asked for next is not to be refused by the other one.
    least = min((most for most in (rules.max_cards, rules.max_cards_per_user) if most is not None), default=0)
    wanted = format_count(spec.gpus.wanted, "card")
    if rules.max_cards is not None and spec.gpus.wanted > rules.max_cards:
        evidence = f"asks for {wanted}; {source} allows {rules.max_cards} for one run (max_cards)"
        findings.append(Finding("rules.max_cards", Level.FAIL, "gpus", evidence, f"ask for {least} at most"))
    most = rules.max_cards_per_user
    if most is not None and spec.gpus.wanted > most:
        evidence = f"asks for {wanted}; {source} allows {most} for one account (share.max_cards_per_user)"
        findings.append(Finding("rules.max_cards_per_user", Level.FAIL, "gpus", evidence, f"ask for {least} at most"))
    if spec.gpus.wanted and rules.max_hold_s is not None:
        hold = _clamp("max_hold", gpu.max_hold_s, rules.max_hold_s, source, findings)
        gpu = replace(gpu, max_hold_s=hold)
        if spec.timeouts.run_s is not None:
            _clamp("max_hold", spec.timeouts.run_s, rules.max_hold_s, source, findings, subject="timeout")
    if rules.max_wait_s is not None and gpu.wait_s > rules.max_wait_s:
        wait = _clamp("max_wait", gpu.wait_s, rules.max_wait_s, source, findings)
        gpu = replace(gpu, wait_s=wait)
    if (
        rules.min_free_bytes is not None
        and gpu.min_free_bytes is not None
        and gpu.min_free_bytes < rules.min_free_bytes
    ):
        evidence = f"asks for {format_bytes(gpu.min_free_bytes)} free on a card; {source} asks for at least "
        evidence += f"{format_bytes(rules.min_free_bytes)} (min_free), which is used"
        findings.append(Finding("rules.min_free", Level.WARN, "gpu.min_free", evidence, "leave gpu.min_free out"))
        gpu = replace(gpu, min_free_bytes=rules.min_free_bytes)
    changes: dict[str, object] = {"gpu": gpu}
    if rules.grace_max_s is not None and (
        spec.grace_max_s > rules.grace_max_s or (spec.grace_s or 0) > rules.grace_max_s
    ):
        changes["grace_max_s"] = min(spec.grace_max_s, rules.grace_max_s)
        if spec.grace_s is not None:
            changes["grace_s"] = _clamp("grace_max", spec.grace_s, rules.grace_max_s, source, findings, subject="grace")
    if spec.priority is Priority.NORMAL and not rules.allow_normal_priority:
        evidence = f"asks for normal priority; {source} does not allow it, low is used (allow_normal_priority)"
        findings.append(Finding("rules.priority", Level.WARN, "priority", evidence, "leave priority out"))
        changes["priority"] = Priority.LOW
    return replace(spec, **changes), tuple(findings)  # type: ignore[arg-type]  # names and types are those of JobSpec


def _clamp(
    rule: str, asked: float | None, limit: float, source: str, findings: list[Finding], *, subject: str = ""
) -> float:
    if asked is None:
        return limit
    if asked > limit:
        subject = subject or f"gpu.{rule.removeprefix('max_') if rule == 'max_wait' else rule}"
        evidence = (
            f"asks for {format_duration(asked)}; {source} allows {format_duration(limit)} ({rule}), which is used"
        )
        findings.append(
            Finding(f"rules.{rule}", Level.WARN, subject, evidence, f"ask for {format_duration(limit)} at most")
        )
    return min(asked, limit)


def judge_hours(rules: Rules, minute_of_day: int) -> Finding | None:
    """A failure when jobs that take cards may not start at this local minute (0..1439); None when they may."""
    if _is_open(rules, minute_of_day):
        return None
    allowed, quiet = rules.allowed_hours, rules.quiet_times
    is_quiet = any(_is_within(span, minute_of_day) for span in quiet)
    source = ", ".join(rules.sources) or "the rules"
    rule, spans = ("quiet_times", quiet) if is_quiet else ("allowed_hours", allowed)
    listed = ", ".join(f"{_clock(begin)}-{_clock(end)}" for begin, end in spans)
    says = f"lets no job take cards at {listed}" if is_quiet else f"allows jobs on cards at {listed} only"
    evidence = f"it is {_clock(minute_of_day)}; {source} {says} ({rule})"
    opens = find_opening(rules, minute_of_day)
    remedy = "ask whoever wrote the rules" if opens is None else f"start it at {_clock(opens)} or later"
    return Finding(f"rules.{rule}", Level.FAIL, "time of day", evidence, remedy)


def find_opening(rules: Rules, minute_of_day: int) -> int | None:
    """The next local minute at which jobs that take cards may start; None when there is none in a day."""
    ends = (end for _, end in rules.quiet_times)
    begins = (begin for begin, _ in rules.allowed_hours)
    edges = sorted((edge - minute_of_day) % DAY_MINUTES for edge in (*ends, *begins))
    later = ((minute_of_day + edge) % DAY_MINUTES for edge in edges)
    return next((minute for minute in later if _is_open(rules, minute)), None)


def _is_open(rules: Rules, minute: int) -> bool:
    if any(_is_within(span, minute) for span in rules.quiet_times):
        return False
    return not rules.allowed_hours or any(_is_within(span, minute) for span in rules.allowed_hours)


def _is_within(span: tuple[int, int], minute: int) -> bool:
    begin, end = span
    return begin <= minute < end if begin < end else minute >= begin or minute < end


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"
