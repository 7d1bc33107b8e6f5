"""The command lines of the runtimes, and what is read of a job's words."""

from __future__ import annotations

import pytest

from holdfast.core.container.command import (
    CardsInside,
    ContainerPlan,
    DeviceGrant,
    build_create_command,
    build_env_file,
    build_exec_command,
    find_unwritable,
    is_clients_own,
    name_container,
    split_environment,
)
from holdfast.core.container.references import Bind, find_inside, is_card_device, read_bind, read_reference
from holdfast.model.container import RuntimeName
from holdfast.model.job import Limits
from holdfast.model.record import replace

pytestmark = pytest.mark.pure
DIGEST = "sha256:" + "a" * 64
CARDS = ("GPU-11111111-2222-3333-4444-555555555555", "GPU-66666666-7777-8888-9999-000000000000")
PLAN = ContainerPlan(
    RuntimeName.DOCKER,
    "holdfast-r.1",
    "r",
    1,
    "/runs/r",
    "abc",
    ("python3", "train.py", "--note", "a b; $(c)\n'd'"),
    "/work",
    {"CUDA_VISIBLE_DEVICES": "x", "HF_TOKEN": "s3cr3t", "HOME": "/tmp"},
    (Bind("/data", "/data"), Bind("/runs/r", "/runs/r", writable=True)),
)


@pytest.mark.requirement("CTR-03", "B-15")
def test_CTR_03_docker_gets_exactly_the_leased_cards_by_uuid() -> None:
    words = build_create_command(replace(PLAN, cards=CardsInside(DeviceGrant.GPUS, CARDS)))
    assert f'--gpus="device={CARDS[0]},{CARDS[1]}"' in words
    assert not any("all" in word for word in words if word.startswith("--gpus"))


@pytest.mark.requirement("CTR-03")
def test_CTR_03_podman_gets_them_by_cdi_or_by_their_device_files() -> None:
    podman = replace(PLAN, runtime=RuntimeName.PODMAN)
    by_cdi = build_create_command(replace(podman, cards=CardsInside(DeviceGrant.CDI, CARDS)))
    assert [word for word in by_cdi if word.startswith("--device")] == [f"--device=nvidia.com/gpu={u}" for u in CARDS]
    nodes = ("/dev/nvidia3", "/dev/nvidiactl")
    by_node = build_create_command(replace(podman, cards=CardsInside(DeviceGrant.NODES, CARDS, nodes)))
    assert [word for word in by_node if word.startswith("--device")] == [f"--device={node}" for node in nodes]


@pytest.mark.requirement("CTR-12", "B-16")
@pytest.mark.parametrize("runtime", [RuntimeName.DOCKER, RuntimeName.PODMAN])
def test_CTR_12_no_value_stands_in_the_words_and_no_shell_reads_the_command(runtime: RuntimeName) -> None:
    words = build_create_command(replace(PLAN, runtime=runtime))
    assert not any("s3cr3t" in word for word in words)
    assert "--env=HF_TOKEN" in words
    # The client would obey this one: it goes in by a file, and stays out of the client's own environment.
    assert "--env-file=/dev/stdin" in words
    assert not any("HOME" in word for word in words)
    assert build_env_file(PLAN.environment) == "HOME=/tmp\n"
    assert find_unwritable({"HOME": "a\nb", "HF_TOKEN": "a\nb", "TZ": '"x"', "LANG": "C"}) == ["HOME", "TZ"]
    assert split_environment(PLAN.environment)[0].keys() == {"CUDA_VISIBLE_DEVICES", "HF_TOKEN"}
    assert words[-4:] == PLAN.command
    assert "--rm" not in words
    assert {"--init", "--pull=never", "--label=holdfast.run=r"} <= set(words)
    assert "--mount=type=bind,source=/data,target=/data,readonly" in words
    assert "--mount=type=bind,source=/runs/r,target=/runs/r" in words


@pytest.mark.requirement("CTR-05")
def test_runs_of_one_id_in_two_roots_have_containers_of_two_names() -> None:
    names = {name_container("r", 1, run_dir) for run_dir in ("/a/r", "/b/r", "/a/\udcff")}
    assert len(names) == 3
    assert all(name.startswith("holdfast-r.1-") for name in names)
    assert name_container("r", 1, "/a/r") in names


def test_a_name_is_one_image_however_it_is_written_and_some_are_in_no_registry() -> None:
    for written, whole in (
        ("train", "docker.io/library/train"),
        ("org/train:1", "docker.io/org/train"),
        ("docker.io/train", "docker.io/library/train"),
        ("registry.example/train", "registry.example/train"),
        ("localhost:5000/train", "localhost:5000/train"),
    ):
        assert (read_reference(written).repository, read_reference(written).is_of_box) == (whole, False)
    for written in ("localhost/train:1", f"localhost/train@{DIGEST}", DIGEST, "a" * 64):
        assert read_reference(written).is_of_box


def test_a_path_may_have_commas_and_quotes() -> None:
    words = build_create_command(replace(PLAN, binds=(Bind('/a, "b"', "/x"),)))
    assert '--mount=type=bind,"source=/a, ""b""",target=/x,readonly' in words


@pytest.mark.requirement("CTR-10")
def test_CTR_10_limits_are_translated() -> None:
    limits = Limits(memory_bytes=1 << 30, swap_bytes=1 << 20, cpus=1.5, tasks=100, affinity=(0, 2))
    words = build_create_command(replace(PLAN, limits=limits, shm_bytes=4096))
    swap = (1 << 30) + (1 << 20)
    expected = {"--memory=1073741824", f"--memory-swap={swap}", "--cpus=1.5", "--pids-limit=100", "--cpuset-cpus=0,2"}
    assert {*expected, "--shm-size=4096"} <= set(words)


@pytest.mark.requirement("CTR-02")
@pytest.mark.parametrize("runtime", [RuntimeName.APPTAINER, RuntimeName.SINGULARITY])
def test_CTR_02_apptainer_gets_its_four_words(runtime: RuntimeName) -> None:
    cards = CardsInside(DeviceGrant.VARIABLE, CARDS)
    words = build_exec_command(replace(PLAN, runtime=runtime, reference="/i.sif", cards=cards))
    assert words[:4] == ("exec", "--containall", "--cleanenv", "--no-home")
    assert {"--pid", "--nv", "--pwd=/work", "--bind=/data:/data:ro", "--bind=/runs/r:/runs/r:rw"} <= set(words)
    assert words[-7:] == ("/i.sif", "/bin/sh", "/run/holdfast/enter.sh", *PLAN.command)
    assert not any("s3cr3t" in word for word in words)


@pytest.mark.parametrize(
    ("text", "moving", "is_file"),
    [
        ("python", True, False),
        ("org/train:1.2", True, False),
        (f"org/train@{DIGEST}", False, False),
        (f"docker://registry.example:5000/org/train:1@{DIGEST}", False, False),
        (DIGEST, False, False),
        ("a" * 64, False, False),
        ("train.sif", False, True),
        ("/images/train", False, True),
        ("$SCRATCH/train.sif", False, True),
    ],
)
def test_a_reference_moves_or_does_not(text: str, moving: bool, is_file: bool) -> None:
    found = read_reference(text)
    assert (found.is_moving, found.is_file) == (moving, is_file)


def test_a_tag_of_digits_is_no_port() -> None:
    found = read_reference("train:2024")
    assert (found.name, found.tag) == ("train", "2024")
    assert read_reference("registry.example:5000/train").name == "registry.example:5000/train"


@pytest.mark.parametrize("name", ["GOOGLE_API_KEY", "GOODDATA_TOKEN"])
def test_CTR_12_a_name_that_only_looks_like_gos_is_not_said_by_value(name: str) -> None:
    assert not is_clients_own(name)
    assert is_clients_own("GODEBUG")


@pytest.mark.parametrize("text", ["", "a b", "-v", "x@sha256:12", "http://x/y", "a;b", "--privileged"])
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="image"):
        read_reference(text)


def test_a_bind_is_read_only_unless_it_says_rw() -> None:
    assert read_bind("/data") == Bind("/data", "/data")
    assert read_bind("/a:/b") == Bind("/a", "/b")
    assert read_bind("/a:/b:rw") == Bind("/a", "/b", writable=True)
    for own in ("/proc", "/sys/x", "/run/holdfast/gate", "//proc", "//run//holdfast"):
        with pytest.raises(ValueError, match="the container's own"):
            read_bind(f"/a:{own}")
    for text in ("", ":", "/a:", "/a:b", "/a:/", "/a://", "/a:/b:rx", "/a\nb:/c", "/a:/b:ro:x"):
        with pytest.raises(ValueError, match=r"SOURCE|inside|line break"):
            read_bind(text)


@pytest.mark.parametrize(
    "path", ["/dev", "/dev/nvidia0", "//dev/nvidia0", "/dev/nvidia-uvm", "/dev/dri/renderD128", "/dev/kfd", "/"]
)
def test_devices_of_cards_come_from_the_lease_alone(path: str) -> None:
    assert is_card_device(path)
    assert not is_card_device("/devices")


@pytest.mark.parametrize(
    ("path", "to_write", "inside"),
    [
        ("/workspace/hf", True, "/vol/hf"),
        ("/workspace", True, "/vol"),
        ("/workspace-2", True, None),
        ("/data/set", False, "/data/set"),
        ("/data/set", True, None),
        ("/workspace/out", True, "/keep"),
        ("/workspace/hidden/x", True, None),
        ("/elsewhere", False, None),
    ],
)
def test_where_a_directory_of_the_box_is_inside(path: str, to_write: bool, inside: str | None) -> None:
    binds = [
        *(Bind("/workspace", "/vol", writable=True), Bind("/data", "/data")),
        *(Bind("/workspace/out", "/keep", writable=True), Bind("/tmp/other", "/vol/hidden", writable=True)),
    ]
    assert find_inside(path, binds, to_write=to_write) == inside
