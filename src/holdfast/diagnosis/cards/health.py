"""Judges a card from readings under load, counters before and now, and the kernel's log (GPUH-01..06).

Pure. One reading decides little: what limits the clocks flaps, so a verdict on throttling needs ten readings or the
driver's own counters. The card's own limits go before fixed temperatures. What was not read is UNKNOWN, never PASS;
what a card says that it does not have is left out.

Findings are ``gpu.<what>`` on the card: `answers`, `xid`, `ecc`, `ecc_corrected`, `remap`, `recovery`, `throttle`,
`temperature`, `load`, `pcie` (docs/gpus.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.diagnosis.evidence import Answer, Detection
from holdfast.model.finding import Finding, Level
from holdfast.model.gpu import Card
from holdfast.model.record import record
from holdfast.model.verdict import Confidence, FailureClass

from .throttling import judge_load, judge_temperature, judge_throttling

STORM_PER_S = 100.0
"""Corrected memory errors a second from which calls to the driver were seen to crawl (17 700 a second blocked every
one for more than 45 s). Source: github.com/NVIDIA/NVSentinel issue 1748."""
MANY_CORRECTED = 50_000_000
"""Since the driver was loaded. Source: the limit of github.com/facebookresearch/gcm."""
FAULT_ACTIONS = {
    "lost": "leave this box: only a reboot brings the card back",
    "reset_required": "end all use of the card and ask for a reset (`holdfast gpus reset-request`)",
    "recovery_wanted": "do what the driver asks for (`holdfast gpus reset-request` writes the message)",
    "unresponsive": "read the kernel log for Xid lines; usually the box has to be rebooted",
    "ecc_uncorrectable": "ask for a reset of the card; when they come back, have it exchanged",
    "remap_failed": "have the card exchanged; rented, return the box",
    "remap_pending": "ask for a reset of the card (`holdfast gpus reset-request`)",
}
FAULT_FINDINGS = {
    "ecc_uncorrectable": "gpu.ecc",
    "remap_failed": "gpu.remap",
    "remap_pending": "gpu.remap",
    "recovery_wanted": "gpu.recovery",
    "reset_required": "gpu.recovery",
}
"""Where a fault of the reading is reported; the others are ``gpu.answers``."""


@record
class KernelWitness:
    """What the kernel log said of one card: detections of `judge_xids`, or why it was not read.

    `reaches_back` says in words how far the log goes back, empty where it holds all of this boot.
    """

    detections: tuple[Detection, ...] = ()
    unread: str = ""
    reaches_back: str = ""


def judge_card_health(
    samples: Sequence[Card],
    counters_before: Card | None,
    counters_now: Card | None,
    xids: KernelWitness | None,
    *,
    elapsed_s: float = 0.0,
    of_a_run: bool = True,
) -> tuple[Finding, ...]:
    """Every finding about one card, passes included, in a fixed order.

    Args:
        samples: readings of this one card over some seconds, oldest first; at least one.
        counters_before: the reading with which its counters are compared (at the launch of a run), or None.
        counters_now: the last reading; None takes the last sample.
        xids: what the kernel and the driver reported; None for a simulated card, which has no kernel.
        elapsed_s: seconds between the two readings of counters.
        of_a_run: whether the first was made at a run's launch, so that older memory errors are not this run's.
    """
    launch = counters_before if of_a_run else None
    now = counters_now or samples[-1]
    name = f"{now.index} ({now.name})"
    found = [*_judge_faults(now, name, launch), *(() if xids is None else _judge_xids(now, name, xids))]
    if not any(finding.id == "gpu.answers" and finding.level is Level.FAIL for finding in found):
        found += _judge_memory_errors(now, name, launch)
        found += _judge_corrected(now, name, counters_before, elapsed_s)
        found += _judge_recovery(now, name)
        found += judge_throttling(samples, counters_before, now, name, elapsed_s)
        found += judge_temperature(samples, name)
        found += judge_load(samples, name)
        found += _judge_link(samples, name, counters_before)
    return tuple(found)


def _judge_faults(card: Card, name: str, before: Card | None) -> Iterator[Finding]:
    """The hard faults of the reading, each under its own finding."""
    lost = False
    for fault in card.faults:
        code = fault.partition(":")[0]
        if code == "ecc_uncorrectable" and _grew(before, card) is False:
            continue  # older than the run: told by its counters
        lost = lost or code not in FAULT_FINDINGS
        action = FAULT_ACTIONS.get(code, "reset the card or update the driver; look at `holdfast gpus`")
        yield Finding(FAULT_FINDINGS.get(code, "gpu.answers"), Level.FAIL, name, fault, action)
    if not lost:
        yield Finding("gpu.answers", Level.PASS, name, "it answers")


def _grew(before: Card | None, now: Card) -> bool | None:
    """Whether uncorrectable errors were added since; None without two readings, or after the counter was reset."""
    if before is None or before.ecc_uncorrectable is None or now.ecc_uncorrectable is None:
        return None
    if now.ecc_uncorrectable < before.ecc_uncorrectable:
        return None
    return now.ecc_uncorrectable > before.ecc_uncorrectable


def _judge_xids(card: Card, name: str, witness: KernelWitness) -> Iterator[Finding]:
    if witness.unread:
        action = "look as root, or as a member of group adm: `dmesg | grep NVRM`"
        yield Finding("gpu.xid", Level.UNKNOWN, name, witness.unread, action)
        if not witness.detections:
            return
    graded = [(_grade(detection, card), detection) for detection in witness.detections]
    for level, detection in graded:
        if level is not Level.PASS:
            yield Finding("gpu.xid", level, name, _words(detection), _say_action(detection, card, level))
    if any(level is not Level.PASS for level, _ in graded) or witness.unread:
        return
    noted = "; ".join(f"Xid {detection.facts.get('code')} noted" for _, detection in graded)
    back = f" (the log reaches back {witness.reaches_back})" if witness.reaches_back else ""
    yield Finding("gpu.xid", Level.PASS, name, (noted or "no Xid of this card") + back)


def _grade(detection: Detection, card: Card) -> Level:
    """How grave one code is for the card's health; a job's own error is no fault of the card.

    A card that was reset since looks well again while its line stays in the log. Where the driver says that it wants
    nothing (recovery action 0, driver 570 and later), the line is a warning; else somebody has to clear it.
    """
    if detection.answer is Answer.UNKNOWN:
        return Level.WARN
    if detection.answer is Answer.YES and detection.kind is FailureClass.HARDWARE:
        certain = detection.confidence is Confidence.CERTAIN
        return Level.FAIL if certain and (card.recovery_action != 0 or card.faults) else Level.WARN
    unknown_code = any("unknown code" in clue.text for clue in detection.evidence_against)
    return Level.WARN if unknown_code else Level.PASS


def _say_action(detection: Detection, card: Card, level: Level) -> str:
    action = detection.facts.get("action", "")
    if level is not Level.FAIL or card.faults:
        return action
    return f"{action} If it was reset since: `holdfast gpus clear {card.index}`"


def _words(detection: Detection) -> str:
    clues = detection.evidence_for or detection.unknown or detection.evidence_against
    return "; ".join(clue.text for clue in (clues[0], clues[-1])) if len(clues) > 1 else clues[0].text


def _judge_memory_errors(now: Card, name: str, before: Card | None) -> Iterator[Finding]:
    """Uncorrectable errors since the run began, and replaced rows."""
    if now.ecc_uncorrectable is None:
        if "ecc_uncorrectable" not in now.unsupported:
            words = "the counter of uncorrectable memory errors could not be read"
            yield Finding("gpu.ecc", Level.UNKNOWN, name, words, "look at `nvidia-smi -q -d ECC`")
    elif _grew(before, now) is False and now.ecc_uncorrectable:
        words = f"{now.ecc_uncorrectable} uncorrectable memory errors, all from before"
        yield Finding("gpu.ecc", Level.WARN, name, words, FAULT_ACTIONS["ecc_uncorrectable"])
    elif not now.ecc_uncorrectable:
        yield Finding("gpu.ecc", Level.PASS, name, "no uncorrectable memory error since the driver was loaded")
    if any(fault.startswith("remap_") for fault in now.faults):
        return
    if now.remapped_uncorrected is not None:
        words = f"{now.remapped_uncorrected} memory rows were replaced, none waits or failed"
        yield Finding("gpu.remap", Level.PASS, name, words)
    elif "remapped_uncorrected" not in now.unsupported:
        yield Finding("gpu.remap", Level.UNKNOWN, name, "replaced memory rows could not be read", "")


def _judge_corrected(now: Card, name: str, before: Card | None, elapsed_s: float) -> Iterator[Finding]:
    """A storm of corrected errors stalls the driver under load while everything else looks well."""
    count = now.ecc_corrected
    if count is None:
        return
    since = None if before is None or before.ecc_corrected is None else count - before.ecc_corrected
    if since is not None and since >= 0 and elapsed_s > 0 and since / elapsed_s >= STORM_PER_S:
        words = f"{since / elapsed_s:.0f} corrected memory errors a second over {elapsed_s:.0f} s"
    elif count >= MANY_CORRECTED:
        words = f"{count} corrected memory errors since the driver was loaded"
    else:
        yield Finding("gpu.ecc_corrected", Level.PASS, name, f"{count} corrected memory errors")
        return
    yield Finding("gpu.ecc_corrected", Level.WARN, name, words, "use another card and tell the administrator")


def _judge_recovery(now: Card, name: str) -> Iterator[Finding]:
    wanted = any(fault.startswith(("reset_required", "recovery_wanted")) for fault in now.faults)
    if now.recovery_action == 0 and not wanted:
        yield Finding("gpu.recovery", Level.PASS, name, "the driver asks for nothing")


def _judge_link(samples: Sequence[Card], name: str, before: Card | None) -> Iterator[Finding]:
    """A link below its width or, under load, below its speed; at rest a slow link saves power and is well."""
    card = samples[-1]
    if card.pcie_width is not None and card.pcie_width_max is not None and card.pcie_width < card.pcie_width_max:
        known = before is not None and before.pcie_width == card.pcie_width
        words = f"the link has {card.pcie_width} of {card.pcie_width_max} lanes" + (", as before" if known else "")
        yield Finding("gpu.pcie", Level.WARN, name, words, "have the card reseated; loading data and NCCL are slower")
        return
    pairs = [
        (sample.pcie_generation, sample.pcie_generation_max)
        for sample in samples
        if (sample.utilisation_pct or 0) >= 50
    ]
    best = max((now for now, most in pairs if now is not None and most is not None), default=None)
    most = card.pcie_generation_max
    if best is not None and most is not None and best < most:
        words = f"the link runs at generation {best} of {most} under load"
        yield Finding("gpu.pcie", Level.WARN, name, words, "have the card reseated; loading data and NCCL are slower")
    elif card.pcie_width is not None:
        words = f"{card.pcie_width} lanes" + (f", generation {best} under load" if best is not None else "")
        yield Finding("gpu.pcie", Level.PASS, name, words)
