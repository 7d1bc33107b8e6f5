"""Sums before something is done: what a pull costs, what an interruption loses at most."""

from __future__ import annotations

from holdfast.core.cost.meter import estimate_egress, estimate_loss
from holdfast.model.record import replace
from holdfast.model.units import format_duration

from .every import Costs, Estimate

TYPICAL = "0.08 to 0.09 of the large clouds, 0 of most others"


def estimate(
    costs: Costs, *, gb: float | None, times: int, price: float | None, interval_s: float | None, machines: int
) -> Costs:
    """The costs of one place with the estimates that were asked for."""
    [cost] = costs.places
    found, unit = [], cost.unit
    if gb is not None:
        rate = price if price is not None else cost.egress_per_gb
        words = f"{gb:g} GB" + (f", {times} times," if times > 1 else "")
        if rate is None:
            found.append(Estimate("egress", None, f"what a GB costs that leaves {cost.place} is not known ({TYPICAL})"))
        else:
            advice = "; once is enough: pull goes on with what is here" if times > 1 and rate else ""
            found.append(Estimate("egress", estimate_egress(gb, rate, times), f"{words} at {rate:g} a GB{advice}"))
    if interval_s is not None:
        loss = None if cost.rate is None else estimate_loss(interval_s, cost.rate, machines)
        words = f"at most {format_duration(interval_s)} of {'1 machine' if machines == 1 else f'{machines} machines'}"
        words += "" if cost.rate is None else f" at {cost.rate:g} {unit} an hour, whatever number of cards it has"
        found.append(Estimate("interruption", loss, words))
    return replace(costs, estimates=tuple(found))
