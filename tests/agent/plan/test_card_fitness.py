"""What the rules of the box say of a Xid reaches everybody who judges its cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.cards import health
from holdfast.agent.cards.health import ask_witnesses
from holdfast.agent.cards.watch import CardReadings
from holdfast.agent.checks import gpu
from holdfast.agent.checks.context import CheckContext
from holdfast.agent.plan import card_fitness
from holdfast.agent.plan.card_fitness import mark_unfit
from holdfast.core.rules.rules import Rules
from holdfast.model.finding import Level
from holdfast.model.gpu import Card, GpuRequest, Inventory, InventorySource, XidEvent
from holdfast.model.job import JobSpec

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.contract, pytest.mark.requirement("GPUH-03")]

CARD = Card(0, "GPU-1", "H100", pci_bus_id="00000000:3B:00.0")
BOX = Inventory(InventorySource.NVML, cards=(CARD,))
RULES = Rules(xids={63: "card"})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """How the kernel's log was asked."""
    calls: list[dict[str, Any]] = []

    def ask(_: object, **words: Any) -> dict[str, object]:
        calls.append(words)
        return {}

    for module in (card_fitness, gpu, health):
        monkeypatch.setattr(module, "ask_kernel", ask)
    return calls


def test_GPUH_03_a_lease_judges_by_the_rules_of_the_box(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    mark_unfit(BOX, RULES, {"HOLDFAST_LEASE_DIR": str(tmp_path / "none")})
    assert [words["overrides"] for words in asked] == [{63: "card"}]


def test_GPUH_03_preflight_judges_by_the_rules_of_the_box(asked: list[dict[str, Any]]) -> None:
    spec = JobSpec("t", ("x",), "/", gpus=GpuRequest(count=1))
    list(gpu._check_health(CheckContext(spec, RULES, {}), BOX, ("GPU-1",)))
    assert [words["overrides"] for words in asked] == [{63: "card"}]


@pytest.mark.parametrize(("text", "bad"), [('[xid]\n13 = "card"\n', True), ("", False)])
def test_GPUH_03_gpus_health_judges_by_the_rules_of_the_box(
    isolated_environment: dict[str, str], text: str, bad: bool
) -> None:
    write_rules(isolated_environment, text)
    assert has_failed(judge()[0]) == bad


def test_gpus_health_says_that_the_rules_cannot_be_read(isolated_environment: dict[str, str]) -> None:
    write_rules(isolated_environment, '[xid]\n13 = "grave"\n')
    witnesses, notes = judge()
    assert not has_failed(witnesses)
    assert "'grave' is no severity" in notes[0]


def write_rules(environ: dict[str, str], text: str) -> None:
    with open(environ["HOLDFAST_RULES"], "w", encoding="ascii") as file:
        file.write(text)


def judge() -> tuple[dict[str, Any], tuple[str, ...]]:
    heard = (XidEvent("GPU-1", 13, 5.0, CARD.pci_bus_id),)
    return ask_witnesses(CardReadings(BOX, {"GPU-1": [CARD]}, 1.0, heard), [CARD])


def has_failed(witnesses: dict[str, Any]) -> bool:
    from holdfast.diagnosis.cards.health import judge_card_health

    found = judge_card_health([CARD], None, CARD, witnesses["GPU-1"])
    return any(finding.id == "gpu.xid" and finding.level is Level.FAIL for finding in found)
