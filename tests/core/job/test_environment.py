"""What the job's environment holds: ours always, defaults where a person was silent, the rest untouched."""

from __future__ import annotations

import pytest

from holdfast.core.job.environment import (
    ALLOCATOR_PAIR,
    NO_CARDS,
    OPTIONAL,
    LaunchContext,
    build_environment,
    choose_allocator,
    choose_nccl,
    choose_recorder,
    correct_allocator,
)
from holdfast.core.job.limits import THREAD_VARIABLES
from holdfast.core.job.redact import REDACTED
from holdfast.model.finding import Level
from holdfast.model.job import Checkpoints, GpuOptions, JobSpec, TrackerMode
from holdfast.model.lease import LeasedDevice
from holdfast.model.record import replace

pytestmark = pytest.mark.pure

SPEC = JobSpec("t", ("true",), "/w")
PLACE = LaunchContext(
    "/r",
    "20261120-104501-t-3fa2",
    2,
    "start",
    "/r/checkpoints",
    "/r/artifacts",
    "/r/attempts/2/heartbeat.json",
    "/r/attempts/2/checkpoint_request.json",
)
CARDS = (LeasedDevice("GPU-b", 1, "H"), LeasedDevice("GPU-a", 0, "H", "MIG-x"))


def test_the_run_names_itself() -> None:
    made = build_environment({"PATH": "/bin"}, SPEC, replace(PLACE, deadline_epoch_s=1234.9, workers=3))
    assert made.values["HOLDFAST_RUN_ID"] == PLACE.run_id
    assert made.values["HOLDFAST_ATTEMPT"] == "2"
    assert made.values["HOLDFAST_DEADLINE"] == "1234"
    assert made.values["HOLDFAST_WORKERS"] == "3"
    assert made.values["PATH"] == "/bin"
    assert "PATH" not in made.added
    assert "HOLDFAST_RUN_DIR" in made.added


def test_an_enclosing_runs_variables_do_not_leak_in() -> None:
    base = {"HOLDFAST_DEADLINE": "1", "HOLDFAST_WORKERS": "64", "HOLDFAST_RUN_ID": "outer"}
    made = build_environment(base, SPEC, PLACE)
    assert "HOLDFAST_DEADLINE" not in made.values
    assert "HOLDFAST_WORKERS" not in made.values
    assert made.values["HOLDFAST_RUN_ID"] == PLACE.run_id


@pytest.mark.requirement("B-14", "B-15", "LEASE-08")
def test_B_15_the_job_sees_the_leased_devices_only() -> None:
    made = build_environment({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, SPEC, replace(PLACE, devices=CARDS))
    assert made.values["CUDA_VISIBLE_DEVICES"] == "GPU-b,MIG-x"
    assert made.values["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert build_environment({}, SPEC, PLACE).values["CUDA_VISIBLE_DEVICES"] == NO_CARDS


def test_a_job_file_cannot_name_the_devices() -> None:
    made = build_environment({}, replace(SPEC, env={"CUDA_VISIBLE_DEVICES": "7"}), PLACE)
    assert made.values["CUDA_VISIBLE_DEVICES"] == NO_CARDS
    assert [finding.id for finding in made.findings] == ["environment.own"]


@pytest.mark.requirement("RAIL-03", "B-11")
@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (None, {"PYTORCH_ALLOC_CONF": ALLOCATOR_PAIR, "PYTORCH_CUDA_ALLOC_CONF": ALLOCATOR_PAIR}),
        ("2.9.0", {"PYTORCH_ALLOC_CONF": ALLOCATOR_PAIR}),
        ("2.10.0+cu130", {"PYTORCH_ALLOC_CONF": ALLOCATOR_PAIR}),
        ("2.5.1+cu121", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:512"}),
        ("2.4.1", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        ("2.0.1", {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}),
        ("1.13.1", {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}),
    ],
)
def test_RAIL_03_allocator_by_torch_version(version: str | None, expected: dict[str, str]) -> None:
    assert choose_allocator({}, version) == expected


@pytest.mark.requirement("RAIL-03")
@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_RAIL_03_the_users_allocator_wins_and_is_reported(name: str) -> None:
    made = build_environment({name: "garbage_collection_threshold:0.8"}, SPEC, PLACE)
    others = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} - {name}
    assert made.values[name] == "garbage_collection_threshold:0.8"
    assert others.isdisjoint(made.values)
    assert "yours is used" in made.findings[0].evidence


@pytest.mark.requirement("RAIL-03", "B-11")
@pytest.mark.parametrize(
    ("value", "corrected"),
    [
        ("expandable_segments:True,max_split_size_mb:512", None),
        ("max_split_size_mb=512", "max_split_size_mb:512"),
        ("expandable_segments=True, max_split_size_mb=512", "expandable_segments:True,max_split_size_mb:512"),
        ("expandable_segments:True;max_split_size_mb:512", "expandable_segments:True,max_split_size_mb:512"),
        ("expandable_segments:True max_split_size_mb:512", "expandable_segments:True,max_split_size_mb:512"),
        ("roundup_power2_divisions:[256:1,512:2,>:4]", None),
        ("", None),
    ],
)
def test_RAIL_03_allocator_syntax(value: str, corrected: str | None) -> None:
    assert correct_allocator(value) == corrected


def test_an_allocator_name_that_torch_does_not_read_is_reported() -> None:
    made = build_environment({"PYTORCH_ALLOC_CONF": ALLOCATOR_PAIR}, SPEC, replace(PLACE, torch_version="2.4.0"))
    assert [(item.id, item.level) for item in made.findings] == [("environment.allocator", Level.WARN)]


@pytest.mark.requirement("RAIL-04", "B-13")
@pytest.mark.parametrize(
    ("user", "version", "expected"),
    [
        ({}, None, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "NCCL_ASYNC_ERROR_HANDLING": "1"}),
        ({}, "2.2.0", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}),
        ({}, "2.1.2", {"NCCL_ASYNC_ERROR_HANDLING": "1"}),
        ({"NCCL_ASYNC_ERROR_HANDLING": "2"}, "2.6.0", {}),
        ({"TORCH_NCCL_BLOCKING_WAIT": "1"}, None, {}),
    ],
)
def test_RAIL_04_nccl_by_torch_version(user: dict[str, str], version: str | None, expected: dict[str, str]) -> None:
    assert choose_nccl(user, version) == expected


@pytest.mark.requirement("B-12")
def test_B_12_no_variable_that_torch_does_not_read() -> None:
    assert "TORCH_CUDA_MEMORY_FRACTION" not in build_environment({}, SPEC, PLACE).values


@pytest.mark.requirement("RAIL-06")
def test_RAIL_06_thread_caps_reach_every_pool() -> None:
    made = build_environment({}, SPEC, replace(PLACE, threads=2))
    assert {made.values[name] for name in THREAD_VARIABLES} == {"2"}
    assert "OMP_NUM_THREADS" not in build_environment({}, SPEC, PLACE).values


@pytest.mark.requirement("RAIL-06")
def test_RAIL_06_the_users_thread_count_wins_in_every_pool() -> None:
    made = build_environment({"OMP_NUM_THREADS": "5", "MKL_NUM_THREADS": "6"}, SPEC, replace(PLACE, threads=2))
    assert made.values["OMP_NUM_THREADS"] == "5"
    assert made.values["MKL_NUM_THREADS"] == "6"
    assert made.values["OPENBLAS_NUM_THREADS"] == "5"
    assert [item.id for item in made.findings] == ["environment.threads"]


@pytest.mark.requirement("RAIL-11")
def test_RAIL_11_tracker_mode() -> None:
    assert build_environment({}, SPEC, PLACE).values["WANDB_MODE"] == "offline"
    assert build_environment({}, replace(SPEC, tracker=TrackerMode.ONLINE), PLACE).values["WANDB_MODE"] == "online"
    assert "WANDB_MODE" not in build_environment({}, replace(SPEC, tracker=TrackerMode.NONE), PLACE).values
    made = build_environment({"WANDB_MODE": "disabled"}, SPEC, PLACE)
    assert made.values["WANDB_MODE"] == "disabled"
    assert [item.id for item in made.findings] == ["environment.tracker"]


@pytest.mark.requirement("RAIL-12")
def test_RAIL_12_python_output_is_unbuffered() -> None:
    assert build_environment({}, SPEC, PLACE).values["PYTHONUNBUFFERED"] == "1"


def test_a_value_redacted_in_the_record_is_not_given_to_the_job() -> None:
    made = build_environment({"HF_TOKEN": "real"}, replace(SPEC, env={"HF_TOKEN": REDACTED, "A": "1"}), PLACE)
    assert made.values["HF_TOKEN"] == "real"
    assert made.values["A"] == "1"


@pytest.mark.parametrize(("stated", "others"), [("2", "2"), ("4,2", "4"), ("many", None)])
def test_a_thread_count_within_the_quota_is_no_finding(stated: str, others: str | None) -> None:
    made = build_environment({"OMP_NUM_THREADS": stated}, SPEC, replace(PLACE, threads=4))
    assert made.findings == ()
    assert made.values["OMP_NUM_THREADS"] == stated
    assert made.values.get("MKL_NUM_THREADS") == others


TOLD = (
    *("HOLDFAST_GRACE", "HOLDFAST_GPU_MEMORY_SHARE", "HOLDFAST_MEAN_TIME_BETWEEN_INTERRUPTIONS"),
    *("HOLDFAST_MIRROR_DIR", "HOLDFAST_CHECKPOINT_EVERY", "HOLDFAST_CHECKPOINT_KEEP", "HOLDFAST_SEED"),
)


@pytest.mark.requirement("LIB-10", "CKPT-09")
def test_LIB_10_the_training_library_is_told_what_it_has_to_apply() -> None:
    checkpoints = Checkpoints("600s", 2, "/durable/", 3600.0)
    spec = replace(SPEC, checkpoints=checkpoints, gpu=GpuOptions(memory_share=0.9), seed=3)
    made = build_environment({}, spec, replace(PLACE, devices=CARDS, grace_s=30.0, interruption_s=7200.5)).values
    assert made["HOLDFAST_GPU_COUNT"] == "2"
    assert [made[name] for name in TOLD] == ["30", "0.9", "7200.5", f"/durable/{PLACE.run_id}", "600s", "2", "3"]


def test_what_nobody_stated_is_not_told() -> None:
    made = build_environment({}, SPEC, PLACE).values
    assert made["HOLDFAST_GPU_COUNT"] == "0"
    assert not set(TOLD) & set(made)


def test_a_scheduler_that_chose_the_cards_promises_no_number_that_nobody_asked_for() -> None:
    assert "HOLDFAST_GPU_COUNT" not in build_environment({}, SPEC, replace(PLACE, imposed=True)).values
    asked = build_environment({}, SPEC, replace(PLACE, imposed=True, devices=CARDS)).values
    assert asked["HOLDFAST_GPU_COUNT"] == "2"


def test_nothing_that_an_enclosing_run_was_told_is_inherited() -> None:
    outer = dict.fromkeys((*OPTIONAL, "HOLDFAST_GPU_COUNT"), "7")
    assert set(TOLD) < OPTIONAL
    made = build_environment({**outer, "PATH": "/bin"}, SPEC, PLACE).values
    assert {name: made[name] for name in OPTIONAL if name in made} == {"HOLDFAST_GPU_COUNT": "0"}
    full = replace(SPEC, checkpoints=Checkpoints("auto", 2, "/d", 1.0), gpu=GpuOptions(memory_share=0.5), seed=0)
    place = replace(PLACE, deadline_epoch_s=1.0, workers=1, grace_s=1.0, interruption_s=1.0)
    assert set(OPTIONAL) < set(build_environment({}, full, place).values), "each of them is set where it can be"


@pytest.mark.parametrize(
    ("paths", "expected"),
    [(None, "/lib"), ("", "/lib"), ("/mine", "/mine:/lib"), ("/a::/b", "/a::/b:/lib"), ("/a:", "/a::/lib")],
)
def test_the_library_stands_behind_the_users_own_paths(paths: str | None, expected: str) -> None:
    base = {} if paths is None else {"PYTHONPATH": paths}
    made = build_environment(base, SPEC, replace(PLACE, library="/lib"))
    assert made.values["PYTHONPATH"] == expected
    assert {"PYTHONPATH", "HOLDFAST_LIBRARY"} <= set(made.added)
    stated = build_environment({"PYTHONPATH": "/x"}, replace(SPEC, env=base), replace(PLACE, library="/lib"))
    assert stated.values["PYTHONPATH"] == ("/x:/lib" if paths is None else expected), "the job file's stands first"
    assert stated.findings == ()


def test_a_path_that_is_there_already_is_not_added_twice() -> None:
    made = build_environment({"PYTHONPATH": "/lib:/a"}, SPEC, replace(PLACE, library="/lib"))
    assert made.values["PYTHONPATH"] == "/lib:/a"
    assert "PYTHONPATH" not in made.added


def test_a_run_inside_of_a_run_has_its_own_library_only() -> None:
    outer = build_environment({"PYTHONPATH": "/mine"}, SPEC, replace(PLACE, library="/old")).values
    assert build_environment(outer, SPEC, replace(PLACE, library="/new")).values["PYTHONPATH"] == "/mine:/new"
    without = build_environment(outer, SPEC, PLACE).values
    assert without["PYTHONPATH"] == "/mine"
    assert "HOLDFAST_LIBRARY" not in without


FLIGHT = replace(PLACE, flight_dir="/r/attempts/2/flight")
BOTH = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_FR_DUMP_TEMP_FILE": "/r/attempts/2/flight/rank_",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/r/attempts/2/flight/rank_",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}
NEW = {name: value for name, value in BOTH.items() if "TRACE" not in name and "DEBUG" not in name}


@pytest.mark.parametrize(
    ("version", "expected"), [(None, BOTH), ("2.5.1", BOTH), ("2.9.0", BOTH), ("2.10.0", NEW), ("2.13.0+cpu", NEW)]
)
def test_flight_records_go_into_the_attempt_under_the_names_that_this_torch_reads(
    version: str | None, expected: dict[str, str]
) -> None:
    assert choose_recorder({}, replace(FLIGHT, torch_version=version)) == expected


def test_flight_records_of_a_run_inside_of_a_run_are_its_own() -> None:
    outer = build_environment({}, SPEC, FLIGHT).values
    inner = build_environment(outer, SPEC, replace(FLIGHT, run_dir="/q", flight_dir="/q/attempts/1/flight"))
    assert {name: inner.values[name] for name in BOTH if name.endswith("FILE")} == {
        "TORCH_FR_DUMP_TEMP_FILE": "/q/attempts/1/flight/rank_",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/q/attempts/1/flight/rank_",
    }


def test_flight_records_that_a_person_has_placed_stay_there() -> None:
    user = {
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/mine/fr_",
        "TORCH_FR_BUFFER_SIZE": "9",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    }
    assert choose_recorder(user, FLIGHT) == {}
    assert choose_recorder({}, PLACE) == {}, "no directory for them"
    made = build_environment(user, SPEC, FLIGHT)
    assert {name: made.values[name] for name in user} == user


@pytest.mark.requirement("RAIL-12")
def test_a_crash_in_native_code_leaves_a_stack_unless_a_person_says_otherwise() -> None:
    assert build_environment({}, SPEC, PLACE).values["PYTHONFAULTHANDLER"] == "1"
    assert build_environment({"PYTHONFAULTHANDLER": ""}, SPEC, PLACE).values["PYTHONFAULTHANDLER"] == ""


@pytest.mark.requirement("STOR-05")
def test_STOR_05_caches_go_where_the_job_says_and_a_users_own_place_stays() -> None:
    spec = replace(SPEC, caches="/data/caches/")
    made = build_environment({"HF_HOME": "/mine"}, spec, PLACE).values
    assert made["HF_HOME"] == "/mine"
    assert made["TORCH_HOME"] == "/data/caches/torch"
    assert made["TRITON_CACHE_DIR"] == "/data/caches/triton"
    assert "XDG_CACHE_HOME" not in made
    assert "TORCH_HOME" not in build_environment({}, SPEC, PLACE).values
