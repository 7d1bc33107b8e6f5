"""Driver, torch and card: which of the three is the odd one."""

from __future__ import annotations

import pytest

from holdfast.core.job.framework import (
    BuildFit,
    FrameworkFacts,
    judge_framework,
    judge_initialised,
    match_architectures,
    parse_cuda,
)
from holdfast.model.finding import Level, worst
from holdfast.model.record import replace
from tests.each import each

pytestmark = pytest.mark.pure

WELL = FrameworkFacts(
    version="2.5.1+cu124",
    cuda="12.4",
    architectures=("sm_50", "sm_80", "sm_86", "sm_90"),
    available=True,
    devices=1,
    capabilities=((8, 0),),
    driver_cuda=(12, 6),
)


@pytest.mark.gotcha("U28")
@pytest.mark.requirement("PRE-10")
@each(
    ("changed", "check", "level", "words"),
    [
        ({}, "framework.driver", Level.PASS, "12.6"),
        ({}, "framework.architecture", Level.PASS, "has code for sm_80"),
        ({"driver_cuda": (12, 2), "available": False}, "framework.driver", Level.FAIL, "the driver is too old"),
        ({"driver_cuda": (12, 2)}, "framework.driver", Level.WARN, "works within CUDA 12"),
        ({"driver_cuda": (11, 8)}, "framework.driver", Level.FAIL, "the driver is too old"),
        ({"driver_cuda": (13, 0)}, "framework.driver", Level.PASS, "13.0"),
        ({"driver_cuda": None}, "framework.driver", Level.UNKNOWN, "not known"),
        ({"capabilities": ((12, 0),)}, "framework.architecture", Level.FAIL, "torch is the odd one"),
        ({"capabilities": ((6, 1),)}, "framework.architecture", Level.FAIL, "no kernel image"),
        ({"capabilities": ((8, 9),)}, "framework.architecture", Level.PASS, "sm_89"),
        ({"capabilities": ()}, "framework.architecture", Level.UNKNOWN, "capability"),
        ({"architectures": ()}, "framework.architecture", Level.UNKNOWN, "architectures"),
        ({"cuda": None}, "framework.build", Level.FAIL, "without CUDA"),
        ({"cuda": None, "hip": "6.2"}, "framework.fit", Level.UNKNOWN, "ROCm"),
    ],
)
def test_PRE_10_the_odd_one_is_named(changed: dict[str, object], check: str, level: Level, words: str) -> None:
    found = judge_framework(replace(WELL, **changed))  # type: ignore[arg-type]
    one = next(finding for finding in found if finding.id == check)
    assert one.level is level
    assert words in one.evidence
    assert level is Level.PASS or one.remedy or check == "framework.fit"


@pytest.mark.requirement("PRE-10")
def test_PRE_10_a_card_newer_than_the_build_names_the_build_that_has_it() -> None:
    found = judge_framework(replace(WELL, capabilities=((12, 0),)))
    one = next(finding for finding in found if finding.id == "framework.architecture")
    assert "CUDA 12.8" in one.remedy


def test_portable_code_is_compiled_by_a_driver_that_is_new_enough_only() -> None:
    portable = replace(WELL, capabilities=((12, 0),), architectures=("sm_90", "compute_90"))
    assert worst(judge_framework(portable)) is Level.WARN
    assert worst(judge_framework(replace(portable, driver_cuda=(12, 2)))) is Level.FAIL


@each(
    ("listed", "capability", "fit"),
    [
        (("sm_80",), (8, 0), BuildFit.NATIVE),
        (("sm_80",), (8, 6), BuildFit.NATIVE),
        (("sm_86",), (8, 0), BuildFit.NONE),
        (("sm_80",), (9, 0), BuildFit.NONE),
        (("sm_90a",), (9, 0), BuildFit.NATIVE),
        (("sm_100a",), (10, 3), BuildFit.NONE),
        (("sm_100f",), (10, 3), BuildFit.NATIVE),
        (("compute_80",), (9, 0), BuildFit.COMPILED_BY_DRIVER),
        (("compute_90a",), (10, 0), BuildFit.NONE),
        (("compute_90",), (8, 0), BuildFit.NONE),
        (("sm_120", "compute_120"), (12, 0), BuildFit.NATIVE),
        (("nonsense", "sm_", ""), (8, 0), BuildFit.NONE),
    ],
)
def test_code_runs_where_the_guide_says(listed: tuple[str, ...], capability: tuple[int, int], fit: BuildFit) -> None:
    assert match_architectures(listed, capability) is fit


@pytest.mark.gotcha("U28")
@pytest.mark.requirement("PRE-09")
def test_PRE_09_a_framework_without_a_card_fails_and_an_unasked_one_is_unknown() -> None:
    assert judge_initialised(WELL).level is Level.PASS
    refused = judge_initialised(replace(WELL, available=False, devices=0, driver_error="cuInit: CUDA_ERROR_UNKNOWN"))
    assert refused.level is Level.FAIL
    assert "cuInit" in refused.evidence
    assert "CPU" in refused.evidence
    assert judge_initialised(replace(WELL, available=None)).level is Level.UNKNOWN
    assert judge_initialised(replace(WELL, devices=0)).level is Level.FAIL


def test_versions_are_read_or_not_known() -> None:
    assert parse_cuda("12.4") == (12, 4)
    assert parse_cuda("12.4.1") == (12, 4)
    assert [parse_cuda(text) for text in (None, "", "cu124")] == [None, None, None]
