"""Preflight: each missing or wrong thing is found before anything starts, and says what, where and what to do."""

from __future__ import annotations

import glob
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.agent.checks import preflight
from holdfast.agent.checks.command import check_command, check_script
from holdfast.agent.checks.context import CheckContext
from holdfast.agent.checks.preflight import run_checks, run_one
from holdfast.core.rules.rules import Rules
from holdfast.host.clock import epoch_s
from holdfast.model import wire
from holdfast.model.container import ContainerSpec
from holdfast.model.finding import Finding, Level
from holdfast.model.gpu import Card, GpuRequest, Inventory, InventorySource
from holdfast.model.job import (
    Checkpoints,
    DiskNeeds,
    GpuOptions,
    IsolationLevel,
    JobSpec,
    Limits,
    Timeouts,
    TrackerMode,
    UnenforcedPolicy,
)
from holdfast.model.record import replace
from tests.rundirs import own_run_id
from tests.waiting import wait_until

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[3]
Run = Callable[..., dict[str, list[Finding]]]
GIB = 1024**3
LEFT = own_run_id("left")
CARDS = Inventory(
    InventorySource.SIMULATED,
    tuple(
        Card(i, f"GPU-{i}", "H", memory_total_bytes=80 * GIB, memory_used_bytes=0, memory_free_bytes=80 * GIB)
        for i in range(2)
    ),
)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    return directory


@pytest.fixture
def run(work: Path) -> Run:
    """Run all checks on a job; answers the findings by id."""

    def checks(*command: str, environ: dict[str, str] | None = None, **fields: object) -> dict[str, list[Finding]]:
        passed = {
            name: fields.pop(name) for name in ("rules", "inventory", "root", "run_dir", "busy_level") if name in fields
        }
        spec = replace(JobSpec("t", command or ("true",), str(work)), **fields)  # type: ignore[arg-type]
        rules = passed.pop("rules", Rules())
        assert isinstance(rules, Rules)
        found: dict[str, list[Finding]] = {}
        for finding in run_checks(spec, rules, environ={**os.environ, **(environ or {})}, **passed):  # type: ignore[arg-type]
            # Runs of other tests on this box are none of ours.
            if finding.id != "leftovers" or finding.subject in (LEFT, "earlier runs"):
                found.setdefault(finding.id, []).append(finding)
        return found

    return checks


def level(found: dict[str, list[Finding]], check: str) -> Level:
    """The gravest level of one check; fails when the check said nothing."""
    assert check in found, f"{check} is not among {sorted(found)}"
    order = list(Level)
    return max((finding.level for finding in found[check]), key=order.index)


def failures(found: dict[str, list[Finding]]) -> list[str]:
    return [finding.id for findings in found.values() for finding in findings if finding.level is Level.FAIL]


@pytest.mark.requirement("PRE-01")
def test_PRE_01_a_sound_job_passes_every_check(run: Run) -> None:
    found = run("true", disk=DiskNeeds(min_free_bytes=1))
    assert failures(found) == []
    assert {"workdir", "command", "disk.bytes", "disk.inodes", "memory", "containment", "rules"} <= set(found)
    # What other tests' runs beside this one leave behind is listed, too.
    found.pop("leftovers", None)
    assert not [finding for findings in found.values() for finding in findings if finding.level is Level.UNKNOWN]


@pytest.mark.requirement("PRE-01")
def test_PRE_01_a_warning_hides_no_failure_and_a_broken_check_hides_nothing(work: Path) -> None:
    def breaks(situation: CheckContext) -> list[Finding]:
        raise RuntimeError(situation.spec.name)

    def half(_: CheckContext) -> object:
        yield Finding("one", Level.FAIL, "s", "e")
        raise OSError(5, "gone")

    situation = CheckContext(JobSpec("t", ("true",), str(work)), Rules(), {})
    assert [(item.id, item.level) for item in run_one(breaks, situation)] == [("preflight.breaks", Level.UNKNOWN)]
    assert [item.id for item in run_one(half, situation)] == ["one", "preflight.half"]  # type: ignore[arg-type]


def test_the_order_is_fixed_and_cheap_checks_come_first() -> None:
    names = [check.__name__ for check in preflight.CHECKS]
    assert names[0] == "check_workdir"
    assert names[-1] == "check_cards"
    assert len(names) == len(set(names))


@pytest.mark.requirement("RAIL-02", "DOC-04")
@pytest.mark.parametrize(
    ("fields", "check", "seen"),
    [
        ({"workdir": "/nowhere"}, "workdir", "does not exist"),
        ({"command": ("no-such-program",)}, "command", "is in none of PATH"),
        ({"command": ("./no-such-program",)}, "command", "does not exist"),
        ({"command": ("",)}, "command", "is empty"),
        ({"command": (sys.executable, "no_such.py")}, "script", "does not exist"),
        ({"command": ("bash", "no_such.sh")}, "script", "does not exist"),
        ({"inputs": ("/nowhere/x.txt",)}, "inputs", "does not exist"),
        ({"config": "/nowhere/c.yaml"}, "config", "cannot be read"),
        ({"data": ("/nowhere",)}, "data", "does not exist"),
        ({"container": ContainerSpec(image="/nowhere/x.sif")}, "image", "no apptainer or singularity on PATH"),
        (
            {"gpus": GpuRequest(count=1), "inventory": Inventory(InventorySource.NONE, reason="no driver")},
            "cards",
            "no driver",
        ),
        ({"gpus": GpuRequest(devices=("7",)), "inventory": CARDS}, "cards", "7"),
    ],
)
def test_RAIL_02_each_missing_thing_is_named(run: Run, fields: dict[str, object], check: str, seen: str) -> None:
    command = fields.pop("command", ("true",))
    assert isinstance(command, tuple)
    found = run(*command, **fields)
    assert level(found, check) is Level.FAIL
    assert seen in found[check][0].evidence
    assert found[check][0].remedy


def test_a_job_of_a_desk_is_told_what_gives_it_an_environment_here(work: Path) -> None:
    (work / wire.RUN).write_text('{"ordered_by": "anna@desk"}')
    situation = CheckContext(JobSpec("t", ("no-such-program",), str(work)), Rules(), {"PATH": "/bin"}, str(work))
    (found,) = check_command(situation)
    assert 'env_from = "login" in places.toml' in found.remedy


def test_where_a_script_was_looked_for_is_told_of_a_relative_path(work: Path) -> None:
    def look(path: str) -> str:
        (found,) = check_script(CheckContext(JobSpec("t", ("python3", path), str(work)), Rules(), {}, str(work)))
        return found.evidence

    assert look("slow.py") == f"does not exist: a relative path counts from the working directory {work}"
    assert look(f"{work}/slow.py") == "does not exist"


def test_what_was_meant_is_proposed(work: Path) -> None:
    def remedy(*command: str, path: str = "/bin") -> str:
        situation = CheckContext(JobSpec("t", command, str(work)), Rules(), {"PATH": path}, str(work.parent))
        return next(
            found.remedy for check in (check_command, check_script) for found in check(situation) if found.remedy
        )

    (work / "train.py").write_text("print(1)\n")
    assert remedy("sh", "trian.py").startswith("did you mean train.py?")
    assert "what git ignores was not sent" in remedy("sh", "nothing_near_it.sh")
    assert remedy("LR=3", "python", "x.py").startswith("no shell reads the command: set the variable by --env LR=...")
    assert remedy("cd", "/tmp") == "no shell reads the command: --workdir /tmp, or: bash -c '...'"
    assert remedy("source", "env.sh") == "no shell reads the command: write it as bash -c '...'"
    assert remedy("./nothere") == "correct the path, which counts from --workdir DIR"
    (work / "python3").write_text("#!/bin/sh\n")
    (work / "python3").chmod(0o755)
    assert remedy("python", "train.py", path=str(work)).startswith("there is a python3: write python3; or ")


def test_an_unreadable_or_unexecutable_program_is_said(run: Run, work: Path) -> None:
    (work / "tool").write_text("#!/bin/sh\n")
    found = run("./tool")
    assert level(found, "command") is Level.FAIL
    assert "not executable (mode 0644)" in found["command"][0].evidence
    assert "chmod +x" in found["command"][0].remedy


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_script_of_somebody_else_is_asked_for(run: Run, work: Path) -> None:
    (work / "job.sh").write_text("echo\n")
    (work / "job.sh").chmod(0)
    assert run("sh", "job.sh")["script"][0].remedy == f"chmod u+r {work}/job.sh"


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        (b"", "is empty"),
        (b"print(1)\n", "interpreter line"),
        (b"#!/no/such/interpreter\n", "/no/such/interpreter does not"),
    ],
)
def test_a_file_that_the_kernel_will_not_execute(run: Run, work: Path, content: bytes, seen: str) -> None:
    (work / "tool").write_bytes(content)
    (work / "tool").chmod(0o755)
    found = run("./tool")
    assert level(found, "command") is Level.FAIL
    assert seen in found["command"][0].evidence


@pytest.mark.gotcha("U26", "GEN4")
@pytest.mark.requirement("PRE-11")
@pytest.mark.parametrize("direct", [True, False])
def test_PRE_11_windows_line_ends_are_refused_with_the_command_that_mends_them(
    run: Run, work: Path, direct: bool
) -> None:
    script = work / "job.sh"
    script.write_bytes(b"#!/bin/bash\r\necho x\r\n" if direct else b"echo y\necho x\r\n")
    script.chmod(0o755)
    found = run("./job.sh") if direct else run("bash", "job.sh")
    assert level(found, "script.line_ends") is Level.FAIL
    assert direct or "line 2" in found["script.line_ends"][0].evidence
    subprocess.run(["bash", "-c", found["script.line_ends"][0].remedy], check=True, cwd=work)
    again = run("./job.sh") if direct else run("bash", "job.sh")
    assert "script.line_ends" not in again


def test_python_files_may_have_windows_line_ends(run: Run, work: Path) -> None:
    (work / "t.py").write_bytes(b"print(1)\r\n")
    assert failures(run(sys.executable, "-u", "t.py", disk=DiskNeeds(min_free_bytes=1))) == []


@pytest.mark.requirement("PRE-02")
@pytest.mark.parametrize(
    ("name", "content", "seen"),
    [
        ("c.json", '{\n "lr": 0.1\n "x": 2}', "line 3"),
        ("c.json", "[" * 200_000, "nested too deeply"),
        ("c.yaml", "a:\n\tb: 1\n", "line 2: a tab"),
        ("c.yaml", "a: \0\n", "line 1: a NUL"),
        ("c.yaml", "a: \udc80\n", "line 1: not UTF-8"),
    ],
)
def test_PRE_02_a_malformed_configuration_names_path_and_line(
    run: Run, work: Path, name: str, content: str, seen: str
) -> None:
    (work / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    found = run(config=str(work / name))
    assert level(found, "config") is Level.FAIL
    assert found["config"][0].subject == str(work / name)
    assert seen in found["config"][0].evidence


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the standard library reads TOML from 3.11 on")
@pytest.mark.requirement("PRE-02")
def test_PRE_02_malformed_toml_names_its_line(run: Run, work: Path) -> None:
    (work / "c.toml").write_text("a = 1\nb = \n")
    found = run(config=str(work / "c.toml"))
    assert level(found, "config") is Level.FAIL
    assert "line 2" in found["config"][0].evidence


def test_data_that_is_an_empty_directory_warns(run: Run, work: Path) -> None:
    (work / "data").mkdir()
    assert level(run(data=(str(work / "data"),)), "data") is Level.WARN
    (work / "data" / "x").touch()
    assert level(run(data=(str(work / "data"),)), "data") is Level.PASS


def test_a_limit_that_nothing_can_hold_fails_or_warns_as_asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.agent.checks import box
    from holdfast.core.job.limits import Mechanism
    from holdfast.host.contain import create, limits

    plan = limits.LimitPlan((limits.LimitInForce("cpu_weight", "50", Mechanism.NONE, "no cgroup here"),))
    monkeypatch.setattr(create, "create_group", lambda *_: None)
    monkeypatch.setattr(box, "plan_limits", lambda *_: plan)
    found = run(limits=Limits(cpu_weight=50))
    assert level(found, "limits") is Level.FAIL
    assert "no cgroup here" in found["limits"][0].evidence
    assert level(run(limits=Limits(cpu_weight=50, unenforced=UnenforcedPolicy.WARN)), "limits") is Level.WARN


@pytest.mark.requirement("PRE-15")
def test_a_run_directory_in_memory_warns(run: Run, work: Path) -> None:
    found = run(environ={"HOLDFAST_RUNS": "/dev/shm/holdfast-test-runs"})
    assert level(found, "disk.memory") is Level.WARN
    assert not os.path.exists("/dev/shm/holdfast-test-runs")


@pytest.mark.gotcha("SLURM5")
@pytest.mark.requirement("PRE-15")
def test_what_a_node_empties_with_its_job_is_no_place_for_checkpoints(run: Run, tmp_path: Path) -> None:
    own, kept = tmp_path / "7", tmp_path / "kept"
    own.mkdir()
    (tmp_path / "link").symlink_to(own)
    node = {"TMPDIR": str(own), "HOLDFAST_RUNS": f"{tmp_path}/link/runs"}
    assert "disk.node_local" not in run(environ=node), "no job of Slurm"
    node["SLURM_JOB_ID"] = "7"
    (found,) = run(environ=node)["disk.node_local"]
    assert found.level is Level.WARN
    assert found.subject == node["HOLDFAST_RUNS"]
    assert f"below {own}, " in found.evidence
    beside = {**node, "HOLDFAST_RUNS": f"{own}-beside/runs", "TMPDIR": str(own)}
    assert not [f for f in run(environ=beside).get("disk.node_local", ()) if str(own) in f.evidence]
    (found,) = run(environ=node, checkpoints=Checkpoints(mirror=f"{own}/mirror"))["disk.node_local"]
    assert found.subject == f"{own}/mirror"
    mirrored = run(environ=node, checkpoints=Checkpoints(mirror=str(kept)))
    assert not [f for f in mirrored.get("disk.node_local", ()) if str(own) in f.evidence]


@pytest.mark.gotcha("SLURM5")
@pytest.mark.requirement("PRE-15")
def test_checkpoints_in_a_temporary_directory_in_memory_are_warned_of(run: Run) -> None:
    node = {"SLURM_JOB_ID": "7", "TMPDIR": "/dev/shm/holdfast-test-7"}
    assert "disk.memory" not in run(environ=node)
    found = run(environ={**node, "HOLDFAST_RUNS": f"{node['TMPDIR']}/runs"})
    assert level(found, "disk.memory") is Level.WARN
    assert "gone after a restart" in found["disk.memory"][0].evidence


@pytest.mark.gotcha("GEN5")
def test_a_job_for_a_larger_machine_is_told_before_it_starts(run: Run) -> None:
    job = {"gpus": GpuRequest(count=8), "limits": Limits(memory_bytes=1 << 60, unenforced=UnenforcedPolicy.WARN)}
    found = run(**job, inventory=CARDS)
    assert level(found, "cards") is Level.FAIL
    assert "8 cards are asked for; this box has 2" in found["cards"][0].evidence
    assert level(found, "memory") is Level.WARN
    found = run(limits=Limits(cpus=4096.0, unenforced=UnenforcedPolicy.WARN))
    assert "4096 cores asked for" in found["share"][0].evidence
    found = run(gpus=GpuRequest(count=2), inventory=CARDS)
    assert level(found, "cards") is Level.PASS


@pytest.mark.requirement("CKPT-06")
def test_CKPT_06_a_mirror_must_take_files_and_be_another_disk(run: Run, work: Path) -> None:
    def mirror(path: str) -> dict[str, list[Finding]]:
        return run(checkpoints=Checkpoints(mirror=path))

    assert "checkpoints.mirror" not in run()
    same = mirror(f"{work}/not/there/yet")
    assert level(same, "checkpoints.mirror") is Level.WARN
    assert "what takes the one takes the other" in same["checkpoints.mirror"][0].evidence
    assert not (work / "not").exists(), "nothing is made"
    (work / "file").touch()
    assert "is not a directory" in mirror(f"{work}/file/mirror")["checkpoints.mirror"][0].evidence
    assert level(mirror(f"{work}/file/mirror"), "checkpoints.mirror") is Level.FAIL
    if os.stat("/dev/shm").st_dev != os.stat(work).st_dev:
        other = mirror("/dev/shm/holdfast-test-mirror")
        assert level(other, "checkpoints.mirror") is Level.PASS
        assert any("checkpoint mirror" in finding.evidence for finding in other["disk.bytes"])


def test_room_is_checked_for_as_many_checkpoints_as_are_kept(run: Run) -> None:
    needs = DiskNeeds(min_free_bytes=1, checkpoint_bytes=1000, keep=1)
    assert "1 kept" in str(run(disk=needs)["disk.bytes"])
    assert "4 kept" in str(run(disk=needs, checkpoints=Checkpoints(keep=4))["disk.bytes"])
    assert "3 kept" in str(run(disk=replace(needs, keep=3), checkpoints=Checkpoints(keep=2))["disk.bytes"])


def test_a_script_that_stays_in_its_place_warns(run: Run, work: Path) -> None:
    (work / "job.sh").write_text('cd "$(dirname "$0")"\n')
    assert level(run("bash", "job.sh", run_dir=str(work / "elsewhere")), "script.live") is Level.WARN
    assert "script.live" not in run("bash", "job.sh")


def test_a_good_configuration_passes(run: Run, work: Path) -> None:
    (work / "c.json").write_text("{}")
    assert level(run(config=str(work / "c.json")), "config") is Level.PASS


@pytest.mark.requirement("PRE-11")
def test_PRE_11_carriage_returns_in_a_sourced_file_are_found(run: Run, work: Path) -> None:
    (work / "job.sh").write_text(
        "#!/bin/bash\nset -e\n# . ./ignored.sh\nif true; then source lib/env.sh; fi\n"
        "[ -f none.sh ] && . none.sh\n. $X\n"
    )
    (work / "job.sh").chmod(0o755)
    (work / "lib").mkdir()
    (work / "ignored.sh").write_bytes(b"x=1\r\n")
    (work / "lib/env.sh").write_text("a=1\n. './lib/deep.sh'\n")
    (work / "lib/deep.sh").write_text("b=2\n. lib/env.sh\n")
    assert level(run("./job.sh"), "script") is Level.PASS
    (work / "lib/deep.sh").write_bytes(b"b=2\nc=3\r\n")
    found = run("./job.sh")["script.line_ends"][0]
    assert (found.level, found.subject) == (Level.FAIL, str(work / "lib/deep.sh"))
    assert "line 2" in found.evidence


@pytest.mark.gotcha("U29")
@pytest.mark.requirement("PRE-17")
def test_PRE_17_floating_requirements_warn_and_a_lock_passes(run: Run, work: Path) -> None:
    assert "pins" not in run()
    (work / "requirements.txt").write_text("torch>=2\nnumpy==2.0.0  # pinned\n-r other.txt\n")
    found = run()
    assert level(found, "pins") is Level.WARN
    assert "torch" in found["pins"][0].evidence
    assert "numpy" not in found["pins"][0].evidence
    (work / "requirements.txt").write_text("torch==2.5.1\n")
    assert level(run(), "pins") is Level.PASS
    (work / "uv.lock").write_text("")
    assert "lock file" in run()["pins"][0].evidence


@pytest.mark.gotcha("U7")
@pytest.mark.requirement("PRE-06")
def test_PRE_06_a_full_disk_behind_a_linked_cache_is_named(run: Run, work: Path) -> None:
    (work / "hf").symlink_to("/dev/shm")
    free = os.statvfs("/dev/shm")
    more = free.f_blocks * free.f_frsize + GIB
    found = run(environ={"HF_HOME": str(work / "hf")}, disk=DiskNeeds(min_free_bytes=more))
    short = [item for item in found["disk.bytes"] if item.subject.startswith("/dev/shm")]
    assert len(short) == 1
    assert short[0].level is Level.FAIL
    assert f"HF_HOME {work}/hf" in short[0].evidence


@pytest.mark.requirement("PRE-07")
def test_PRE_07_the_checkpoint_budget_falls_on_the_run_directory(run: Run) -> None:
    found = run(disk=DiskNeeds(min_free_bytes=0, checkpoint_bytes=1 << 50, keep=3))
    short = [item for item in found["disk.bytes"] if item.level is Level.FAIL]
    assert len(short) == 1
    assert "run directory" in short[0].evidence
    assert "3 kept checkpoints and one being written" in short[0].evidence


@pytest.mark.gotcha("U41")
@pytest.mark.requirement("PRE-08")
def test_PRE_08_the_memory_ceiling_is_the_cgroups(run: Run) -> None:
    found = run(limits=Limits(memory_bytes=1 << 60, unenforced=UnenforcedPolicy.WARN))
    assert level(found, "memory") is Level.WARN
    assert "GiB" in found["memory"][0].evidence


def test_limits_name_their_mechanism_and_leave_no_group(run: Run) -> None:
    found = run(limits=Limits(memory_bytes=1 << 30, open_files=512))
    assert {item.subject for item in found["limits"]} == {"limits.memory", "limits.open_files"}
    # Groups of other tests come and go meanwhile, which `Path.rglob` does not bear.
    assert glob.glob(f"/sys/fs/cgroup/**/preflight-{os.getpid()}-*/", recursive=True) == []


def test_a_level_that_does_not_exist_here_is_a_failure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.agent.checks import box
    from holdfast.host.contain import containment

    refused = containment.ChosenLevel(None, (containment.ProbedLevel(IsolationLevel.CGROUP_V2, "no cgroup2 mount"),))
    monkeypatch.setattr(box, "choose_level", lambda _: refused)
    found = run(containment=IsolationLevel.CGROUP_V2)
    assert level(found, "containment") is Level.FAIL
    assert "no cgroup2 mount" in found["containment"][0].evidence


def in_child(set_up: Callable[[], None], check: Callable[[], dict[str, list[Finding]]]) -> dict[str, str]:
    """Run checks in a child with other process limits; answers id to gravest level."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            set_up()
            found = check()
            os.write(writer, json.dumps({name: level(found, name).value for name in found}).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    answered = json.loads(text)
    assert isinstance(answered, dict)
    return answered


@pytest.mark.requirement("PRE-19", "B-44")
def test_PRE_19_an_address_space_limit_fails_a_gpu_job_only(run: Run) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (64 * GIB, resource.RLIM_INFINITY))

    gpu = in_child(limit, lambda: run(gpus=GpuRequest(count=1), inventory=CARDS))
    assert gpu["rlimits.address_space"] == "fail"
    assert in_child(limit, run)["rlimits.address_space"] == "warn"
    assert "rlimits.address_space" not in in_child(lambda: None, run)


@pytest.mark.requirement("PRE-19", "B-44")
def test_PRE_19_other_limits_that_break_training_warn(run: Run) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))
        resource.setrlimit(resource.RLIMIT_CPU, (3600, 3600))
        resource.setrlimit(resource.RLIMIT_FSIZE, (GIB, GIB))

    found = in_child(limit, lambda: run(disk=DiskNeeds(min_free_bytes=1, checkpoint_bytes=2 * GIB)))
    assert found["rlimits.open_files"] == "warn"
    assert found["rlimits.cpu_time"] == "warn"
    assert found["rlimits.file_size"] == "fail"


@pytest.mark.requirement("PRE-19")
def test_PRE_19_a_small_shared_memory_warns_a_job_with_workers(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.agent.checks.box.SMALL_SHM_BYTES", 1 << 60)
    assert level(run("true", "--num-workers=4"), "shm") is Level.WARN
    assert level(run("true"), "shm") is Level.PASS
    assert level(run("true", root=str(tmp_path)), "shm") is Level.UNKNOWN


@pytest.mark.requirement("RAIL-03", "B-11")
def test_RAIL_03_a_wrong_allocator_setting_is_refused_with_the_right_one(run: Run) -> None:
    found = run(environ={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb=512"})
    assert level(found, "environment.allocator") is Level.FAIL
    assert found["environment.allocator"][0].remedy == "export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512"


@pytest.mark.requirement("RAIL-09")
def test_RAIL_09_installing_in_the_run_is_refused_unless_allowed(run: Run, work: Path) -> None:
    command = ("bash", "-c", "pip install torch && python t.py")
    found = run(*command)
    assert level(found, "command.installs") is Level.FAIL
    assert "`pip install`" in found["command.installs"][0].evidence
    assert level(run(*command, allow_install=True), "command.installs") is Level.WARN
    (work / "job.sh").write_text("set -e\nconda install -y x\n")
    assert level(run("bash", "job.sh"), "command.installs") is Level.FAIL


@pytest.mark.gotcha("GEN3")
def test_a_copy_that_cannot_go_on_is_warned_of(run: Run, work: Path) -> None:
    for text in ("scp box:/data.tar .", "wget https://x/data.tar", "cd /x && sftp box"):
        assert level(run("bash", "-c", text), "command.copies") is Level.WARN, text
    (work / "job.sh").write_text("set -e\n# scp a b\nscp a b\n")
    found = run("bash", "job.sh")
    assert found["command.copies"][0].subject.endswith("job.sh")
    for text in ("rsync --partial a b", "wget -c https://x/data.tar", "python scp.py", "echo ftp"):
        assert "command.copies" not in run("bash", "-c", text), text


@pytest.mark.gotcha("U35")
@pytest.mark.requirement("RAIL-11")
def test_RAIL_11_online_needs_a_credential_which_is_never_shown(run: Run, work: Path) -> None:
    assert level(run(tracker=TrackerMode.ONLINE), "tracker") is Level.FAIL
    found = run(tracker=TrackerMode.ONLINE, environ={"WANDB_API_KEY": "verysecret"})
    assert level(found, "tracker") is Level.PASS
    assert "verysecret" not in str(found)
    (work / ".netrc").write_text("machine api.wandb.ai\n login user\n password verysecret\n")
    assert level(run(tracker=TrackerMode.ONLINE, environ={"HOME": str(work)}), "tracker") is Level.PASS
    assert "wandb sync" in run()["tracker"][0].evidence


@pytest.mark.requirement("OBS-04")
def test_a_secret_on_the_command_line_is_refused_without_being_shown(run: Run) -> None:
    found = run("true", "--api-key", "verysecret")
    assert level(found, "command.secrets") is Level.FAIL
    assert "verysecret" not in str(found["command.secrets"])


@pytest.mark.requirement("ETIQ-07")
def test_ETIQ_07_more_than_a_fair_share_warns(run: Run) -> None:
    found = run(threads=10_000)
    assert level(found, "share") is Level.WARN
    assert "10000 threads" in found["share"][0].evidence
    assert level(run(environ={"OMP_NUM_THREADS": "10000"}), "share") is Level.WARN
    assert level(run(threads=1), "share") is Level.PASS


@pytest.mark.requirement("ETIQ-09")
def test_ETIQ_09_the_rules_of_the_box_are_part_of_preflight(run: Run) -> None:
    rules = Rules(max_hold_s=3600.0, sources=("/etc/r.toml",))
    found = run(gpus=GpuRequest(count=1), gpu=GpuOptions(max_hold_s=7200.0), inventory=CARDS, rules=rules)
    assert level(found, "rules.max_hold") is Level.WARN
    never = Rules(allowed_hours=((0, 0),))
    assert "rules.allowed_hours" not in run(gpus=GpuRequest(count=1), inventory=CARDS, rules=never)


@pytest.mark.parametrize("share", [True, False])
def test_more_memory_than_a_card_has_is_a_failure_not_a_wait(run: Run, share: bool) -> None:
    gpu = GpuOptions(memory_bytes=200 * GIB, share=share, wait_s=3600.0)
    found = run(gpus=GpuRequest(count=1), gpu=gpu, inventory=CARDS)
    assert level(found, "cards") is Level.FAIL
    assert "200 GiB of each card are asked for (gpu.memory)" in found["cards"][0].evidence
    small = replace(gpu, memory_bytes=GIB)
    assert level(run(gpus=GpuRequest(count=1), gpu=small, inventory=CARDS), "cards") is Level.PASS


def test_a_card_that_is_taken_whole_by_who_says_its_memory_is_told(run: Run) -> None:
    whole = GpuOptions(memory_bytes=GIB)
    found = run(gpus=GpuRequest(count=1), gpu=whole, inventory=CARDS)
    assert level(found, "cards.whole") is Level.WARN
    assert "--share" in found["cards.whole"][0].remedy
    for silent in (replace(whole, share=True), GpuOptions(min_free_bytes=GIB)):
        assert "cards.whole" not in run(gpus=GpuRequest(count=1), gpu=silent, inventory=CARDS)
    assert "cards.whole" not in run(gpu=whole)


@pytest.mark.requirement("PRE-24")
def test_PRE_24_deadlines_and_session_ends_before_the_expected_end_warn(run: Run, tmp_path: Path) -> None:
    found = run(expected_s=72_000.0, timeouts=Timeouts(run_s=3600.0, total_s=7200.0))
    assert {item.subject for item in found["time.deadline"]} == {"timeout", "timeouts.total"}
    now = int(epoch_s())
    soon = {"SLURM_JOB_END_TIME": str(now + 43_200)}
    found = run(expected_s=72_000.0, environ=soon)
    assert level(found, "time.session") is Level.WARN
    assert "checkpoints" in found["time.session"][0].remedy
    assert "time.session" not in run(expected_s=60.0, environ=soon)
    (tmp_path / "run/systemd/shutdown").mkdir(parents=True)
    (tmp_path / "run/systemd/shutdown/scheduled").write_text(f"USEC={now + 600}000000\nMODE=reboot\n")
    assert "reboot" in run(expected_s=3600.0, root=str(tmp_path))["time.session"][0].evidence


@pytest.mark.requirement("SLM-04")
@pytest.mark.gotcha("SLURM2")
def test_SLM_04_a_save_that_has_grown_beyond_slurms_warning_is_told_at_each_attempt(run: Run, tmp_path: Path) -> None:
    def check(save_s: float, left_s: float = 36_000.0) -> Finding:
        beat = tmp_path / "attempts/1/heartbeat.json"
        beat.parent.mkdir(parents=True, exist_ok=True)
        beat.write_text(json.dumps({"schema": 1, "save_seconds": save_s}))
        (tmp_path / "attempts/2").mkdir(exist_ok=True)
        environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(int(epoch_s() + left_s))}
        (found,) = run(run_dir=str(tmp_path), environ=environ)["time.warning"]
        return found

    (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "scheduler": "slurm"}))
    record = {"schema": 1, "name": "t", "comment": "c", "lead_s": 120.0}
    (tmp_path / "slurm.json").write_text(json.dumps(record))
    assert check(20).level is Level.PASS
    grown = check(90)
    assert grown.level is Level.WARN
    assert "a save took 1m30s" in grown.evidence
    assert "holdfast restart" in grown.evidence
    assert check(20, left_s=150).level is Level.WARN
    (tmp_path / "slurm.json").write_text(json.dumps({**record, "lead_s": None}))
    assert "time.warning" not in run(run_dir=str(tmp_path), environ={"SLURM_JOB_ID": "7"})
    (tmp_path / "slurm.json").write_text("{")
    assert run(run_dir=str(tmp_path), environ={"SLURM_JOB_ID": "7"})["time.warning"][0].level is Level.UNKNOWN


@pytest.mark.requirement("PROC-24")
def test_PROC_24_a_login_manager_that_ends_sessions_is_told_with_the_remedy(run: Run, tmp_path: Path) -> None:
    from holdfast.host.process.processes import user_name

    (tmp_path / "run/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd").mkdir(parents=True)
    (tmp_path / "etc/systemd/logind.conf").write_text("[Login]\nKillUserProcesses=yes\nKillExcludeUsers=nobody\n")
    found = run(root=str(tmp_path))
    assert level(found, "login") is Level.WARN
    assert f"enable-linger {user_name(os.geteuid())}" in found["login"][0].remedy


@pytest.mark.requirement("PRE-22")
def test_PRE_22_a_leftover_of_an_ended_run_is_listed_with_its_run(run: Run, tmp_path: Path) -> None:
    marker = {"HOLDFAST_RUN_ID": LEFT, "HOLDFAST_RUN_DIR": str(tmp_path / LEFT), "HOLDFAST_ATTEMPT": "1"}
    child = subprocess.Popen(["tail", "-f", "/dev/null"], env={**os.environ, **marker})
    try:
        # Its name is there before its environment can be read (execve(2) sets them one after the other).
        wait_until(lambda: f"HOLDFAST_RUN_ID={LEFT}".encode() in Path(f"/proc/{child.pid}/environ").read_bytes())

        def find_ours() -> Finding:
            (ours,) = (finding for finding in run()["leftovers"] if finding.subject == LEFT)
            return ours

        ours = find_ours()
        assert ours.level is Level.WARN
        assert str(child.pid) in ours.evidence
        (tmp_path / LEFT).mkdir()
        # A directory that says nothing about an end is no proof of one, and none of the contrary.
        assert find_ours().level is Level.UNKNOWN
    finally:
        child.kill()
        child.wait()


@pytest.mark.requirement("PRE-03")
def test_PRE_03_cards_are_judged(run: Run) -> None:
    request = GpuRequest(count=2)
    found = run(gpus=request, inventory=CARDS)
    assert level(found, "cards") is Level.PASS
    assert "simulated" in found["cards"][0].subject
    sick = replace(CARDS, cards=(CARDS.cards[0], replace(CARDS.cards[1], faults=("lost: fell off the bus",))))
    found = run(gpus=request, inventory=sick)
    assert level(found, "cards") is Level.FAIL
    assert "fell off the bus" in found["cards.rejected"][0].evidence
    full = replace(
        CARDS, cards=(CARDS.cards[0], replace(CARDS.cards[1], memory_free_bytes=1, memory_used_bytes=80 * GIB))
    )
    assert level(run(gpus=request, inventory=full), "cards") is Level.WARN
    assert level(run(gpus=request, inventory=full, busy_level=Level.FAIL), "cards") is Level.FAIL
    assert level(run(gpus=request, run_dir="/r"), "cards") is Level.PASS
    assert "cards" not in run()


def test_every_finding_is_in_the_documentation() -> None:
    ids = set()
    for path in (ROOT / "src/holdfast/agent").rglob("*.py"):
        if path.parent.name == "checks":
            ids |= set(
                re.findall(r"""(?:passed|unknown|warned|failed|report|Finding)\(\s*"([a-z_.]+)",""", path.read_text())
            )
    for path in (ROOT / "src/holdfast/core/job/disk_budget.py", ROOT / "src/holdfast/core/job/environment.py"):
        ids |= set(re.findall(r"""Finding\(\s*"([a-z_.]+)",""", path.read_text()))
    documented = set(re.findall(r"`([a-z_.]+)`", (ROOT / "docs/preflight.md").read_text()))
    assert len(ids) > 30
    assert ids <= documented
