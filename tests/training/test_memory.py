"""The memory share goes through torch's own call, once for each visible device."""

from __future__ import annotations

import sys
import types

import pytest

from holdfast.training import limit_gpu_memory

pytestmark = pytest.mark.pure


class FakeCuda:
    """Stands where torch.cuda does and writes down what it is asked."""

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self.calls: list[tuple[float, int]] = []

    def is_available(self) -> bool:
        return self.devices > 0

    def device_count(self) -> int:
        return self.devices

    def set_per_process_memory_fraction(self, fraction: float, device: int) -> None:
        self.calls.append((fraction, device))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A torch with two visible devices."""
    module = types.ModuleType("torch")
    fake = FakeCuda(2)
    module.cuda = fake  # type: ignore[attr-defined]  # a stand-in module
    monkeypatch.setitem(sys.modules, "torch", module)
    return fake


def test_RAIL_05_each_visible_device_gets_one_call_with_95_percent(cuda: FakeCuda) -> None:
    assert limit_gpu_memory() == 2
    assert cuda.calls == [(0.95, 0), (0.95, 1)]


def test_RAIL_05_another_share_is_passed_on(cuda: FakeCuda) -> None:
    limit_gpu_memory(0.5)
    assert [share for share, _ in cuda.calls] == [0.5, 0.5]


def test_RAIL_05_without_a_card_nothing_is_called(cuda: FakeCuda) -> None:
    cuda.devices = 0
    assert limit_gpu_memory() == 0
    assert cuda.calls == []


def test_RAIL_05_without_torch_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert limit_gpu_memory() == 0
    assert "torch" not in sys.modules


@pytest.mark.parametrize("share", [0, -0.1, 1.01])
def test_RAIL_05_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share of the memory"):
        limit_gpu_memory(share)


def test_LIB_10_only_the_named_devices_are_limited(cuda: FakeCuda) -> None:
    assert limit_gpu_memory(0.5, [1, 7]) == 1
    assert cuda.calls == [(0.5, 1)]
