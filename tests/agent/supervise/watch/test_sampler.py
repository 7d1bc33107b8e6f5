"""What health samples hold and what follows from them: disks that fill, cards that throttle, idle, or are lost."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.supervise.watch import cards as card_watch
from holdfast.agent.supervise.watch.cards import IDLE_S, CardWatch, PaceWatch, find_leased
from holdfast.host.process import libc
from holdfast.model import wire
from holdfast.model.gpu import Card, GpuRequest, Inventory, InventorySource
from holdfast.model.job import DiskNeeds, GpuOptions, JobSpec, Notify
from holdfast.model.lease import LeasedDevice
from holdfast.model.record import replace
from holdfast.model.run import RequestKind
from tests.agent.driving import Drive, Driven, job
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.agent.supervise.context import SupervisorContext
    from tests.fakes.nvml.driver import FakeNvml

PACER = str(Path(__file__).parents[2] / "jobs" / "pacer.py")
CARD = Card(0, "GPU-a", "H100", utilisation_pct=90, temperature_c=60, sm_clock_mhz=1980, sm_clock_max_mhz=1980)


def train(*words: str) -> tuple[str, ...]:
    return (sys.executable, PACER, *words)


def samples(run: Driven) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in Path(run.path(wire.HEALTH)).read_text().split("\n")[:-1]]
    except FileNotFoundError:
        return []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Makes tmpfs mounts with these options."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    mounted: list[str] = []

    def make(options: str) -> str:
        path = str(tmp_path / f"disk-{len(mounted)}")
        os.mkdir(path, 0o700)
        libc.mount("tmpfs", path, kind="tmpfs", options=f"{options},mode=0700")
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        libc.umount(path, flags=libc.MNT_DETACH)


def watch_disk(drive: Drive, disk: str, word: str, **fields: Any) -> Driven:
    needs = DiskNeeds(min_free_bytes=1, min_free_inodes=1, paths=(disk,))
    return drive(*train(f"{word}:{disk}"), disk=needs, health_every_s=0.15, **fields)


def alert(run: Driven, name: str, disk: str) -> dict[str, Any]:
    found = wait_until(
        lambda: [event["data"] for event in run.events(name) if event["data"]["mount_point"] == disk],
        what=f"{name} of {disk}; {run.log()}",
    )
    data: dict[str, Any] = found[0]
    return data


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.requirement("STOR-09", "MON-10")
def test_STOR_09_a_disk_that_fills_is_told_before_it_is_full(drive: Drive, small_disk: Callable[[str], str]) -> None:
    disk = small_disk("size=128m")
    run = watch_disk(drive, disk, "fill", notify=Notify(("true",)))
    data = alert(run, "disk_filling", disk)
    assert data["free_bytes"] > 0.2 * data["total_bytes"], "there is time left to do something"
    assert 1 <= data["full_in_s"] < 60
    assert data["full_between_s"][0] <= data["full_in_s"]
    Path(disk, "enough").touch()
    run.ended()
    assert len([event for event in run.events("disk_filling") if event["data"]["mount_point"] == disk]) == 1
    assert run.events("notified")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.requirement("STOR-01", "MON-10")
def test_STOR_01_inodes_are_told_though_bytes_are_free(drive: Drive, small_disk: Callable[[str], str]) -> None:
    disk = small_disk("size=32m,nr_inodes=100")
    run = watch_disk(drive, disk, "litter")
    data = alert(run, "inodes_filling", disk)
    assert data["free_inodes"] > 0
    assert data["free_bytes"] > 0.9 * data["total_bytes"]
    Path(disk, "enough").touch()
    run.ended()
    last = next(item for item in samples(run)[-1]["disks"] if item["mount_point"] == disk)
    assert (last["kind"], last["total_inodes"]) == ("tmpfs", 100)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.requirement("MON-10", "LIM-09")
def test_MON_10_a_sample_has_the_disks_and_a_quiet_box_no_alert(drive: Drive) -> None:
    run = drive(*job("stay"), health_every_s=0.1)
    wait_until(lambda: len([one for one in samples(run) if one["disks"]]) > 8, what="samples with disks")
    disks = samples(run)[-1]["disks"]
    assert len({item["mount_point"] for item in disks}) == len(disks), "each file system once"
    assert all(item["free_bytes"] <= item["total_bytes"] for item in disks)
    names = {event["event"] for event in run.events()}
    assert names.isdisjoint({"inodes_filling", "idle_lease", "slower", "card_fault", "card_throttled", "stalled"})
    run.ask(RequestKind.STOP_NOW)
    run.ended()


@pytest.mark.slow
@pytest.mark.process
def test_without_samples_there_are_none(drive: Drive) -> None:
    run = drive(*job("leave_after", 0.5, 0), health_every_s=0.0)
    run.ended()
    assert samples(run) == []


@pytest.mark.slow
@pytest.mark.gotcha("U23")
@pytest.mark.process
@pytest.mark.requirement("GPUH-05", "GPUH-06", "MON-10")
def test_GPUH_06_a_throttled_card_and_a_fault_are_told_once_each(drive: Drive, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(1)
    run = drive(
        *train("steps:10000:0.1"),
        gpus=GpuRequest(count=1),
        gpu=GpuOptions(idle_window_s=0.0, verify=False),
        environ=fake_nvml.environment(),
        health_every_s=0.15,
    )
    run.running()
    wait_until(lambda: len(samples(run)) > 2, what="samples")
    cards = samples(run)[-1]["cards"]
    assert {"sm_clock_mhz", "sm_clock_max_mhz", "power_limit_w", "memory_utilisation_pct"} <= cards[0].keys()
    fake_nvml.cards[0].values.update(clock_reasons=0x40, utilisation=99)
    fake_nvml.write()
    (event,) = wait_until(lambda: run.events("card_throttled"), what="it is told")
    assert event["data"]["throttle"] == ["hw_thermal"]
    fake_nvml.cards[0].values["ecc.volatile.uncorrected"] = 3
    fake_nvml.write()
    (fault,) = wait_until(lambda: run.events("card_fault"), what="the fault is told")
    assert any("ecc" in words for words in fault["data"]["faults"])
    told = len(samples(run))
    wait_until(lambda: len(samples(run)) > told + 3, what="more samples")
    assert len(run.events("card_throttled")) == len(run.events("card_fault")) == 1
    run.ask(RequestKind.STOP_NOW)
    run.ended()


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.requirement("GPUH-06", "MON-10")
def test_a_card_that_falls_off_the_bus_is_told(drive: Drive, fake_nvml: FakeNvml) -> None:
    fake_nvml.add_cards(2)
    run = drive(
        *train("steps:10000:0.1"),
        gpus=GpuRequest(count=1),
        gpu=GpuOptions(idle_window_s=0.0, verify=False),
        environ=fake_nvml.environment(),
        health_every_s=0.15,
    )
    (device,) = run.running().devices
    wait_until(lambda: len(samples(run)) > 2, what="samples")
    fake_nvml.lose(device.index)
    (event,) = wait_until(lambda: run.events("card_fault"), what="it is told")
    assert event["data"]["card"] == device.card_uuid
    assert event["data"]["faults"][0].startswith("lost: ")
    run.ask(RequestKind.STOP_NOW)
    run.ended()


@pytest.mark.pure
def test_a_card_that_is_missing_is_lost_only_when_the_reading_is_whole() -> None:
    lease = [LeasedDevice("GPU-a", 0, "H100")]
    other = Card(1, "GPU-b", "H100")
    (lost,) = find_leased(Inventory(InventorySource.NVML, (other,)), lease)
    assert (lost.uuid, [fault.partition(":")[0] for fault in lost.faults]) == ("GPU-a", ["lost"])
    assert find_leased(Inventory(InventorySource.NVML, (other,), complete=False), lease) == []
    assert find_leased(Inventory(InventorySource.NVML), lease) == []


@pytest.mark.pure
def test_a_card_that_was_not_read_once_has_no_fault_and_one_that_stays_silent_has() -> None:
    told = Told()
    watch = CardWatch(told)
    silent = replace(CARD, faults=("unresponsive: nvmlDeviceGetUUID has not returned for 1.0 s",))
    for card in (silent, silent, CARD, silent, silent):
        watch.note([card], None, None)
    assert told.names == []
    for _ in range(5):
        watch.note([silent], None, None)
    assert told.names == ["card_fault"]


class Told:
    """What was alerted."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def __call__(self, event: str, **data: object) -> None:
        self.events.append((event, data))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]


@pytest.mark.pure
@pytest.mark.requirement("GPUH-06")
@pytest.mark.parametrize(("reasons", "told"), [(0x4, 0), (0x1, 0), (0, 0), (None, 0), (0x40, 1), (0x24, 1), (0x80, 1)])
def test_GPUH_06_heat_is_told_once_and_a_power_cap_is_not(reasons: int | None, told: int) -> None:
    alerts = Told()
    watch = CardWatch(alerts)
    for _ in range(30):
        watch.note([replace(CARD, clock_reasons=reasons)], 1, 1.0)
    assert alerts.names == ["card_throttled"] * told


@pytest.mark.pure
@pytest.mark.requirement("GPUH-06")
def test_GPUH_06_one_reading_of_ten_is_not_told_and_what_comes_again_is_told_again() -> None:
    alerts = Told()
    watch = CardWatch(alerts)
    cool, hot = replace(CARD, clock_reasons=0), replace(CARD, clock_reasons=0x40)
    for index in range(60):
        watch.note([hot if index % 10 == 0 else cool], index, 1.0)
    assert alerts.names == []
    for card in [hot] * 10 + [cool] * 10 + [hot] * 10:
        watch.note([card], 1, 1.0)
    assert alerts.names == ["card_throttled"] * 2


@pytest.mark.gotcha("U21")
@pytest.mark.pure
@pytest.mark.requirement("GPUH-05")
@pytest.mark.parametrize(("power_w", "clock", "told"), [(130.0, 900, 1), (650.0, 1900, 0), (None, 900, 0)])
def test_GPUH_05_full_use_without_power_is_told_as_underfed(power_w: float | None, clock: int, told: int) -> None:
    alerts = Told()
    watch = CardWatch(alerts)
    for _ in range(30):
        card = replace(CARD, utilisation_pct=100, power_w=power_w, power_limit_w=700.0, sm_clock_mhz=clock)
        watch.note([card], 1, 1.0)
    assert alerts.names == ["card_underfed"] * told


@pytest.mark.pure
def test_each_fault_of_a_card_is_told_when_it_comes() -> None:
    alerts = Told()
    watch = CardWatch(alerts)
    for faults in ((), ("lost: gone",), ("lost: gone",), ("lost: gone", "ecc_uncorrectable: 3"), (), ("lost: gone",)):
        watch.note([replace(CARD, faults=faults)], 1, 1.0)
    assert [data["faults"] for _, data in alerts.events] == [["lost: gone"], ["ecc_uncorrectable: 3"], ["lost: gone"]]


@pytest.mark.requirement("LEASE-20")
@pytest.mark.pure
@pytest.mark.parametrize(
    ("card", "cpu_step_s", "steps", "told"),
    [
        (replace(CARD, utilisation_pct=0), 0.1, False, 1),
        (replace(CARD, utilisation_pct=0), 60.0, False, 0),
        (replace(CARD, utilisation_pct=0), 0.1, True, 0),
        (replace(CARD, utilisation_pct=30), 0.1, False, 0),
        (replace(CARD, utilisation_pct=None), 0.1, False, 0),
    ],
    ids=["idle", "the CPU works", "it steps", "the card works", "unreadable"],
)
def test_only_a_lease_that_nothing_uses_is_idle(
    card: Card, cpu_step_s: float, steps: bool, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts = Told()
    watch = CardWatch(alerts)
    now = [0.0]
    monkeypatch.setattr(card_watch, "monotonic_s", lambda: now[0])
    for index in range(int(2 * IDLE_S / 60)):
        now[0] += 60.0
        watch.note([card], index if steps else 7, index * cpu_step_s)
    assert alerts.names == ["idle_lease"] * told


@pytest.mark.contract
@pytest.mark.requirement("GPUH-11")
@pytest.mark.parametrize(
    ("before", "now", "model", "told"),
    [(10.0, 6.5, "H100", 1), (10.0, 8.0, "H100", 0), (10.0, 6.5, "A100", 0), (10.0, 20.0, "H100", 0)],
    ids=["35 % less", "20 % less", "on another model", "faster"],
)
def test_GPUH_11_a_drop_against_the_attempts_before_is_told_with_the_clocks(
    tmp_path: Path, before: float, now: float, model: str, told: int
) -> None:
    for attempt, name in ((1, model), (2, "H100")):
        directory = tmp_path / "attempts" / str(attempt)
        directory.mkdir(parents=True)
        (directory / wire.MANIFEST).write_bytes(wire.to_bytes({"devices": [{"name": name}]}))
    lines = ["[]", "{", *(json.dumps({"steps_per_s": pace}) for pace in (before, before * 1.1, before * 0.9, None))]
    (tmp_path / "attempts" / "1" / wire.HEALTH).write_text("\n".join(lines))

    class Here:
        run_dir, attempt = str(tmp_path), 2

    alerts = Told()
    watch = PaceWatch(_as_context(Here()), alerts)
    for _ in range(25):
        watch.note(now, [replace(CARD, sm_clock_mhz=900)])
    assert alerts.names == ["slower"] * told
    for _, data in alerts.events:
        assert (data["steps_per_s"], data["before_steps_per_s"]) == (6.5, 10.0)
        assert data["cards"] == [card_watch.describe_slow(replace(CARD, sm_clock_mhz=900))]


def _as_context(here: object) -> SupervisorContext:
    return here  # type: ignore[return-value]  # as much of it as is looked at


@pytest.mark.pure
def test_every_alert_has_somebody_who_is_told_by_default() -> None:
    assert JobSpec("t", ("x",), "/").notify.on == ("alert", "ended")
