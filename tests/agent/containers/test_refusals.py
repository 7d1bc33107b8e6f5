"""What stands in the way of a container, and what to do: told before anything is leased, nothing left behind."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.checks.context import CheckContext
from holdfast.agent.checks.inputs import check_image
from holdfast.agent.patrol import containers
from holdfast.agent.queue.submit.refuse import check_jobs
from holdfast.core.rules.rules import Rules
from holdfast.host.container import docker as docker_module
from holdfast.host.container.runtime import call_all
from holdfast.model import wire
from holdfast.model.container import (
    CONTAINER_RECORD,
    ContainerRecord,
    ContainerSpec,
    ContainerUser,
    EntryPoint,
    RuntimeName,
)
from holdfast.model.errors import UsageError
from holdfast.model.finding import Finding, Level
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import Checkpoints, JobSpec
from holdfast.model.queue import NewJob
from holdfast.model.record import replace

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.driving import Drive
    from tests.runtimes import Engine

pytestmark = pytest.mark.process
ID = "b" * 64
HERE = os.uname().release
INSPECTED = f'[{{"Id": "sha256:{ID}", "Architecture": "amd64", "Config": {{}}}}]'
STANDS_IN = """#!/bin/sh
# A docker that answers as told: its words for each verb are files beside it.
here=$(dirname "$0")
verb=$1
[ "$verb" = image ] || [ "$verb" = container ] && verb=$1-$2
[ -e "$here/$verb" ] || exit 0
cat "$here/$verb"
exit "$(cat "$here/$verb.code" 2>/dev/null || echo 0)"
"""


def look(container: ContainerSpec, environ: dict[str, str], **fields: Any) -> list[Finding]:
    spec = JobSpec("t", ("true",), "/", container=container, **fields)
    return list(check_image(CheckContext(spec, Rules(), {**os.environ, **environ})))


def the_failure(found: list[Finding]) -> Finding:
    failures = [finding for finding in found if finding.level is Level.FAIL]
    assert len(failures) == 1, found
    assert failures[0].remedy
    return failures[0]


def stand_in(place: Path, **words: tuple[str, int]) -> dict[str, str]:
    """A directory with a docker that says these words; the environment in which it is found."""
    place.mkdir()
    (place / "docker").write_text(STANDS_IN)
    (place / "docker").chmod(0o755)
    answers = {"info": ('{"ServerVersion": "28", "CgroupDriver": "cgroupfs"}', 0), "image-inspect": (INSPECTED, 0)}
    for verb, (said, code) in {**answers, **{verb.replace("_", "-"): told for verb, told in words.items()}}.items():
        (place / verb).write_text(said)
        (place / f"{verb}.code").write_text(str(code))
    return {"PATH": f"{place}:{os.environ['PATH']}"}


@pytest.mark.slow
@pytest.mark.requirement("PRE-04", "CTR-07", "PRE-17")
@pytest.mark.gotcha("U30")
def test_PRE_04_images_are_here_and_pinned_or_refused(podman: Engine, tmp_path: Path) -> None:
    wish = ContainerSpec(runtime=RuntimeName.PODMAN)
    missing = the_failure(look(replace(wish, image=f"org/train@sha256:{ID}"), podman.environ))
    assert "does not have this image" in missing.evidence
    assert missing.remedy == f"podman pull org/train@sha256:{ID}"
    moving = the_failure(look(replace(wish, image=podman.tag), podman.environ))
    assert "moving tag" in moving.evidence
    assert podman.image in moving.remedy
    absent = the_failure(look(replace(wish, image="org/train:1"), podman.environ))
    assert absent.remedy.startswith("podman pull org/train:1, then name it by its digest")
    # What it says to write is taken.
    assert [f.level for f in look(replace(wish, image=podman.image), podman.environ)] == [Level.PASS]
    allowed = look(replace(wish, image=podman.tag, moving_tag=True), podman.environ)
    assert [finding.level for finding in allowed] == [Level.PASS, Level.WARN]
    good = replace(wish, image=podman.image)
    for bind, words in (
        (f"{tmp_path}/gone:/x:ro", "is not on this box"),
        ("/dev/nvidia1:/dev/nvidia1:rw", "cards that are not leased"),
        ("/dev:/dev:rw", "cards that are not leased"),
    ):
        assert words in the_failure(look(replace(good, binds=(bind,)), podman.environ)).evidence
    written = the_failure(look(replace(good, binds=(f"{tmp_path}:/x:rw",)), podman.environ, data=(str(tmp_path),)))
    assert "declared as data" in written.evidence
    cards = the_failure(look(good, podman.environ, env={"NVIDIA_VISIBLE_DEVICES": "all"}))
    assert "other cards than the lease" in cards.evidence
    assert "login shell" in the_failure(look(good, podman.environ, login_shell=True)).evidence
    assert the_failure(look(replace(good, network="a b"), podman.environ)).id == "container.network"


@pytest.mark.requirement("PRE-04")
def test_no_runtime_at_all_is_said_with_what_to_install() -> None:
    found = the_failure(look(ContainerSpec(f"x@sha256:{ID}"), {"PATH": "/nowhere"}))
    assert "there is no podman or docker" in found.evidence
    assert "podman" in found.remedy


def test_an_image_file_wants_apptainer_and_has_to_be_there(tmp_path: Path) -> None:
    for name in ("apptainer", "singularity"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("#!/bin/sh\n")
        (tmp_path / name / name).chmod(0o755)
    image = ContainerSpec(str(tmp_path / "train.sif"))
    neither = the_failure(look(image, {"PATH": "/nowhere"}))
    assert neither.evidence.startswith(
        f"there is no file {tmp_path}/train.sif, and no apptainer or singularity on PATH"
    )
    assert (neither.remedy.startswith("correct the path"), "apptainer installed" in neither.remedy) == (True, True)
    environ = {"PATH": str(tmp_path / "singularity")}
    missing = the_failure(look(image, environ))
    assert "has no image" in missing.evidence
    assert missing.remedy.startswith("singularity pull")
    (tmp_path / "train.sif").write_text("x")
    found = look(image, environ)
    assert found[0].level is Level.PASS
    assert "apptainer is not on PATH" in found[0].evidence
    both = look(image, {"PATH": f"{tmp_path}/singularity:{tmp_path}/apptainer"}, gpus=GpuRequest(count=1))
    assert "apptainer" in both[0].evidence
    assert "all cards of the box" in both[1].evidence


@pytest.mark.parametrize(
    ("said", "words", "remedy"),
    [
        ("Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?", "Cannot connect", "start"),
        ("permission denied while trying to connect to the Docker daemon socket", "permission denied", "group docker"),
    ],
)
def test_a_daemon_that_is_down_or_not_for_us(tmp_path: Path, said: str, words: str, remedy: str) -> None:
    environ = stand_in(tmp_path / "bin", info=(said, 1))
    found = the_failure(look(ContainerSpec(f"x@sha256:{ID}", RuntimeName.DOCKER), environ))
    assert words in found.evidence
    assert remedy in found.remedy


def test_a_daemon_that_hangs_costs_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = stand_in(tmp_path / "bin")
    (tmp_path / "bin" / "docker").write_text("#!/bin/sh\nexec sleep 1000\n")
    monkeypatch.setattr(docker_module, "call_all", partial(call_all, within_s=0.3))
    found = the_failure(look(ContainerSpec(f"x@sha256:{ID}", RuntimeName.DOCKER), environ))
    assert "not done within 0.3 s" in found.evidence
    assert "systemctl restart docker" in found.remedy


@pytest.mark.requirement("PRE-04")
@pytest.mark.parametrize(
    "facts", [{"KernelVersion": "6.10.14-linuxkit"}, {"KernelVersion": HERE, "OperatingSystem": "Docker Desktop"}]
)
def test_a_daemon_on_another_machine_or_in_a_vm_is_refused(tmp_path: Path, facts: dict[str, str]) -> None:
    wish = ContainerSpec(f"x@sha256:{ID}", RuntimeName.DOCKER)
    environ = stand_in(tmp_path / "bin", info=(json.dumps({"ServerVersion": "28", **facts}), 0))
    found = the_failure(look(wish, environ))
    assert f"another machine or a VM: {facts.get('OperatingSystem')}, kernel {facts['KernelVersion']}" in found.evidence
    assert "DOCKER_HOST" in found.remedy
    (tmp_path / "bin" / "info").write_text(json.dumps({"ServerVersion": "28", "KernelVersion": HERE}))
    assert look(wish, environ)[0].level is Level.PASS
    told = [docker_module.TWO_NUMBERS.sub(r"\1.0", release) for release in ("6.1-x", "6.18.44-fc", "5.15.1.2")]
    assert told == ["6.1.0-x", "6.18.44-fc", "5.15.1.2"], "as Docker tells them"


@pytest.mark.parametrize(
    ("facts", "there"),
    [
        ({}, False),
        ({"InitBinary": "docker-init", "InitCommit": {"ID": "N/A"}}, False),
        ({"InitBinary": "docker-init", "InitCommit": {"ID": "de40ad0"}}, True),
        # Debian's tini tells no commit.
        ({"InitBinary": "docker-init", "InitCommit": {"ID": ""}}, True),
    ],
)
def test_an_init_program_that_a_daemon_names_and_has_not_is_none(
    tmp_path: Path, facts: dict[str, object], there: bool
) -> None:
    environ = stand_in(tmp_path / "bin", info=(json.dumps({"ServerVersion": "28", **facts}), 0))
    found = look(ContainerSpec(f"x@sha256:{ID}", RuntimeName.DOCKER), environ)
    assert ("container.init" not in {finding.id for finding in found}) is there


def test_an_image_that_no_registry_has_is_brought_or_built(tmp_path: Path) -> None:
    environ = stand_in(tmp_path / "bin", image_inspect=("Error: No such image: x", 1))
    for image, named in (
        (f"sha256:{ID}", ""),
        (f"localhost/train@sha256:{ID}", ", and name it sha256:ID as load says"),
    ):
        found = the_failure(look(ContainerSpec(image, RuntimeName.DOCKER), environ))
        assert (
            found.remedy
            == f"bring it from where it is: docker save {image} | ssh BOX docker load{named}; or build it on the box"
        )


@pytest.mark.requirement("CTR-07")
@pytest.mark.parametrize(
    ("listed", "pinned"),
    [
        ([f"mirror.example/x@sha256:{'c' * 64}", f"x@sha256:{'d' * 64}"], f"docker.io/library/x@sha256:{'d' * 64}"),
        ([f"mirror.example/x@sha256:{'c' * 64}"], f"sha256:{ID}"),
    ],
)
def test_CTR_07_a_digest_of_another_repository_is_not_written_down(
    tmp_path: Path, listed: list[str], pinned: str
) -> None:
    facts = json.dumps([{"Id": f"sha256:{ID}", "RepoDigests": listed}])
    environ = stand_in(tmp_path / "bin", image_inspect=(facts, 0))
    moving = the_failure(look(ContainerSpec("docker.io/library/x:1", RuntimeName.DOCKER), environ))
    assert moving.remedy.startswith(f"write it down: image: {pinned};")


def test_an_image_for_another_machine(tmp_path: Path) -> None:
    environ = stand_in(tmp_path / "bin", image_inspect=(INSPECTED.replace("amd64", "riscv64"), 0))
    found = the_failure(look(ContainerSpec(f"x@sha256:{ID}", RuntimeName.DOCKER), environ))
    assert "for riscv64, and this box is" in found.evidence
    assert found.remedy.startswith("docker pull --platform linux/amd64 x, and name it by the digest of that one")


def test_an_account_without_numbers_of_its_own_is_told_by_whom_it_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "podman").write_text("#!/bin/sh\necho '         0       1000          1'\n")
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = the_failure(look(ContainerSpec(f"x@sha256:{ID}", RuntimeName.PODMAN), {"PATH": str(tmp_path)}))
    assert "/etc/subuid" in found.evidence
    assert "usermod --add-subuids" in found.remedy


def test_what_no_start_can_take_is_refused_when_it_is_handed_in_and_what_may_come_is_remarked(tmp_path: Path) -> None:
    environ = {**os.environ, **stand_in(tmp_path / "bin")}

    def hand_in(image: str, **fields: Any) -> list[str]:
        spec = JobSpec("t", ("true",), "/", container=ContainerSpec(image, RuntimeName.DOCKER, **fields))
        return check_jobs(spec, [NewJob("one")], environ)

    assert hand_in(f"x@sha256:{ID}") == []
    for image, fields, words in (
        ("x:1", {}, "moving tag"),
        (f"x@sha256:{ID}", {"binds": ("/dev:/dev",)}, "cards that are not leased"),
    ):
        with pytest.raises(UsageError, match=words):
            hand_in(image, **fields)
    (tmp_path / "bin" / "image-inspect").write_text("Error: No such image: x")
    (tmp_path / "bin" / "image-inspect.code").write_text("1")
    (note,) = hand_in(f"x@sha256:{ID}")
    assert f"docker pull x@sha256:{ID}" in note
    assert hand_in("images/train.sif") == []


def test_each_image_of_a_sweep_is_looked_at_when_it_is_handed_in(tmp_path: Path) -> None:
    environ = {**os.environ, **stand_in(tmp_path / "bin")}
    spec = JobSpec("t", ("true",), "/", container=ContainerSpec(f"x@sha256:{ID}", RuntimeName.DOCKER))

    def swept(image: str | None) -> NewJob:
        return NewJob(image or "bare", change={"container": wire.encode(replace(spec.container, image=image))})

    assert check_jobs(spec, [swept(f"y@sha256:{ID}"), swept(f"z@sha256:{ID}")], environ) == []
    with pytest.raises(UsageError, match="y:1: is a moving tag") as refused:
        check_jobs(spec, [swept(f"z@sha256:{ID}"), swept("y:1"), swept("y:1")], environ)
    assert str(refused.value).count("moving tag") == 1
    # The base job alone has an image that cannot be had, and no job of the sweep runs in it.
    assert check_jobs(replace(spec, container=replace(spec.container, image="y:1")), [swept(None)], environ) == []


def test_what_apptainer_has_no_notation_for_is_refused_before_anything_is_leased(tmp_path: Path) -> None:
    (tmp_path / "apptainer").write_text("#!/bin/sh\n")
    (tmp_path / "apptainer").chmod(0o755)
    (tmp_path / "train.sif").write_text("x")
    (tmp_path / "a,b").mkdir()
    image = ContainerSpec(str(tmp_path / "train.sif"))
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for bind in (f"{tmp_path}/a,b:/data", f"{tmp_path}:/a,b"):
        found = the_failure(look(replace(image, binds=(bind,)), environ))
        assert (found.id, "no path with a comma" in found.evidence) == ("container.paths", True)
        spec = JobSpec("t", ("true",), "/", container=replace(image, binds=(bind,)))
        with pytest.raises(UsageError, match="no path with a comma"):
            check_jobs(spec, [NewJob("one")], environ)
    assert the_failure(look(image, environ, data=(f"{tmp_path}/a,b",))).id == "container.paths"
    assert look(image, environ)[0].level is Level.PASS


@pytest.mark.requirement("CTR-03", "CTR-06")
def test_what_a_job_declares_is_judged_as_what_it_binds(tmp_path: Path) -> None:
    (tmp_path / "data/cache").mkdir(parents=True)
    (tmp_path / "dev").symlink_to("/dev")
    data, image = str(tmp_path / "data"), ContainerSpec("x")
    devices: list[dict[str, Any]] = [{"data": ("/dev",)}, {"inputs": (str(tmp_path / "dev"),)}]
    for fields in (*devices, {"data": ("/dev/nvidia1",)}):
        assert look(image, {}, **fields)[0].id == "container.cards", fields
    writable: list[dict[str, Any]] = [{"caches": f"{data}/cache"}, {"checkpoints": Checkpoints(mirror=str(tmp_path))}]
    for fields in writable:
        found = look(image, {}, data=(data,), **fields)
        assert (found[0].id, f"{data} is declared as data" in found[0].evidence) == ("container.data", True), fields


@pytest.mark.parametrize(
    ("changes", "name", "words"),
    [
        ({"network": "lab"}, "container.network", "no network by name"),
        ({"user": ContainerUser.IMAGE}, "container.user", "your own account"),
        ({"entrypoint": EntryPoint.KEEP}, "container.entrypoint", "gets no command"),
    ],
)
def test_what_apptainer_cannot_do_is_refused_and_not_left_out(
    tmp_path: Path, changes: dict[str, Any], name: str, words: str
) -> None:
    (tmp_path / "apptainer").write_text("#!/bin/sh\n")
    (tmp_path / "apptainer").chmod(0o755)
    (tmp_path / "train.sif").write_text("x")
    image = ContainerSpec(str(tmp_path / "train.sif"))
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    found = the_failure(look(replace(image, **changes), environ))
    assert (found.id, words in found.evidence) == (name, True)
    assert look(replace(image, network="none"), environ)[0].level is Level.PASS
    shm = look(replace(image, shm_bytes=1 << 30), environ)
    assert [(one.id, one.level) for one in shm[1:]] == [("container.shm", Level.WARN)]


@pytest.mark.parametrize(
    ("said", "words", "remedy"),
    [
        ("write /x: no space left on device", "no space left", "store is full"),
        ("network nosuch not found", "nosuch", "docker network ls"),
        (
            'Conflict. The container name "/holdfast-x.1" is already in use by container "c"',
            "already in use",
            "it is none of holdfast: whoever made holdfast-",
        ),
    ],
)
def test_a_store_that_is_full_and_a_name_that_is_taken(
    drive: Drive, tmp_path: Path, said: str, words: str, remedy: str
) -> None:
    theirs = '[{"Config": {"Labels": {}}, "State": {"Running": false}}]'
    environ = stand_in(tmp_path / "bin", create=(said, 1), container_inspect=(theirs, 0))
    run = drive("true", container=ContainerSpec(f"x@sha256:{ID}", RuntimeName.DOCKER), environ=environ)
    ended = run.ended()
    assert ended.exit_code == 71
    assert ended.refusal is not None
    assert words in ended.refusal.message
    assert remedy in ended.refusal.hint
    assert not run.events("exec")


def test_CTR_12_a_value_that_cannot_be_said_without_being_obeyed_is_refused(drive: Drive, tmp_path: Path) -> None:
    environ = stand_in(tmp_path / "bin")
    spec = ContainerSpec(f"x@sha256:{ID}", RuntimeName.DOCKER, env=("HTTP_PROXY",))
    run = drive("true", container=spec, environ={**environ, "HTTP_PROXY": "one\ntwo"})
    refusal = run.ended().refusal
    assert refusal is not None
    assert "HTTP_PROXY" in refusal.message
    assert "two" not in refusal.message


def test_the_container_record_of_another_accounts_run_names_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = stand_in(tmp_path / "bin")
    program, attempt = (
        f"{next(iter(environ.values())).split(':')[0]}/docker",
        tmp_path / "runs" / "r" / "attempts" / "1",
    )
    attempt.mkdir(parents=True)
    record = ContainerRecord(RuntimeName.DOCKER, program, ID, "holdfast-r.1", "x", f"sha256:{ID}")
    (attempt / CONTAINER_RECORD).write_bytes(wire.to_bytes(record))
    assert list(containers.list_records(str(tmp_path / "runs"))) == [record]
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert not list(containers.list_records(str(tmp_path / "runs")))
