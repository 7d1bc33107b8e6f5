"""The launcher of several nodes and its members without Slurm: the one member runs here, too."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.detached import build_command
from holdfast.agent.place.nodes.link import Link
from holdfast.model import wire
from holdfast.model.job import JobSpec
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

SRUN = """\
#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
env -0 > "$LAUNCH.env"
printf '%s\\0' "$@" > "$LAUNCH.part"
mv "$LAUNCH.part" "$LAUNCH"
exec sleep 600
"""
"""Leaves what it was to start on another machine, for the test to start it: none of the launcher's children."""
SCONTROL = """\
#!/bin/sh
echo "NodeName=first Arch=x86_64 NodeAddr=localhost NodeHostName=first"
"""


class Nodes:
    """A run directory, and the launcher of its first attempt on this machine, which is both nodes."""

    def __init__(self, path: Path) -> None:
        """Make the run and the stand-in."""
        self.run_dir = path / "20261123-101500-two-3fa2"
        self.attempt = self.run_dir / "attempts/1"
        self.attempt.mkdir(parents=True)
        job = wire.encode(JobSpec("two", ("true",), str(path)))
        (self.run_dir / "run.json").write_text(json.dumps({"schema": 1, "job": job}))
        self.bin, self.launch = path / "bin", path / "launch"
        self.bin.mkdir()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)

    @contextmanager
    def begun(self, *command: str, cwd: str = "", **member: str) -> Iterator[subprocess.Popen[str]]:
        """The launcher with its one member; `member` and `cwd` are what differs for that node."""
        environ = {
            **os.environ,
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "LAUNCH": str(self.launch),
            "SLURM_JOB_NUM_NODES": "2",
            "SLURMD_NODENAME": "first",
            "CUDA_VISIBLE_DEVICES": "0,1",
            "NCCL_DEBUG": "WARN",
        }
        words = build_command("slurm-lead", "--run", str(self.run_dir), "--attempt", "1", "--", *command)
        lead = subprocess.Popen(
            words, env=environ, cwd=self.run_dir, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        with lead:
            wait_until(lambda: self.launch.exists() or lead.poll() is not None, what="srun is called")
            if not self.launch.exists():
                yield lead
                return
            argv = self.launch.read_text().split("\0")[:-1]
            self.launch.unlink()
            lines = (self.launch.parent / "launch.env").read_text().split("\0")[:-1]
            there = dict(line.split("=", 1) for line in lines)
            there |= {"SLURM_PROCID": "0", "SLURMD_NODENAME": "second", **member}
            with subprocess.Popen(argv, env=there, cwd=cwd or self.run_dir):
                yield lead

    def run(self, *command: str, cwd: str = "", **member: str) -> tuple[int, str]:
        """Run a command on both; exit code and what the first node has said."""
        with self.begun(*command, cwd=cwd, **member) as lead:
            said, _ = lead.communicate(timeout=LIMIT_S)
        return lead.returncode, said

    @property
    def record(self) -> dict[str, Any]:
        """What is recorded of the nodes."""
        found: dict[str, Any] = json.loads((self.attempt / "nodes.json").read_text())
        return found

    @property
    def output(self) -> str:
        """What the command has written on the other node."""
        path = self.attempt / "nodes/1/output.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def nodes(isolated_environment: dict[str, str], tmp_path: Path) -> Nodes:
    """A run over two nodes that are both here."""
    return Nodes(tmp_path)


@pytest.mark.requirement("MN-01", "MN-02")
def test_MN_01_what_differs_is_named_and_what_cannot_work_is_refused_before_the_command(nodes: Nodes) -> None:
    code, said = nodes.run("sh", "-c", "echo ran on $HOLDFAST_NODE_RANK", NCCL_DEBUG="INFO")
    assert (code, nodes.output) == (0, "ran on 1\n")
    (warning,) = nodes.record["warnings"]
    assert warning == "node 1 (second): NCCL_DEBUG is 'INFO', on the first node 'WARN'"
    assert said == f"holdfast: {warning}\nran on 0\n"

    code, said = nodes.run("sh", "-c", "echo ran", CUDA_VISIBLE_DEVICES="0")
    assert code == 78
    assert "node 1 (second) it has 1 card, the first node 2 cards" in said
    assert "\nran\n" not in said

    code, said = nodes.run("sh", "-c", "echo ran", cwd="/")
    assert code == 78
    assert f"does not have the working directory {nodes.run_dir}" in said


@pytest.mark.requirement("MN-03", "MN-04")
def test_the_first_that_fails_ends_all_and_its_end_is_the_runs(nodes: Nodes) -> None:
    script = '[ "$HOLDFAST_NODE_RANK" = 0 ] && kill -SEGV $$; exec sleep 600'
    assert nodes.run("sh", "-c", script)[0] == -signal.SIGSEGV
    assert [node["code"] for node in nodes.record["nodes"]] == [139, 143]
    assert nodes.record["first"]["words"] == "failed with SIGSEGV"

    # One that does not heed TERM is killed after a while, and one that cannot be started has failed as well.
    assert nodes.run("sh", "-c", '[ "$HOLDFAST_NODE_RANK" = 1 ] && exit 3; exec sleep 600')[0] == 3
    assert nodes.record["first"]["node"] == 1
    assert nodes.run("./not-there")[0] == 127


def test_what_a_stop_brings_about_is_nobodys_failure(nodes: Nodes) -> None:
    script = 'trap "echo saved; exit 143" TERM; echo begun; while :; do sleep 0.05; done'
    with nodes.begun("sh", "-c", script) as process:
        wait_until(lambda: "begun" in nodes.output, what="the other node runs")
        os.kill(process.pid, signal.SIGTERM)
        wait_until(lambda: "saved" in nodes.output, what="the other node has heard it")
        # The first node's command hears it of the supervisor, as all of its tree.
        (command,) = [int(pid) for pid in _children(process.pid)]
        os.kill(command, signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143
    assert nodes.record["first"] is None
    assert [node["code"] for node in nodes.record["nodes"]] == [143, 143]


def test_a_message_that_comes_in_pieces_is_one_and_an_end_is_told() -> None:
    one, other = socket.socketpair()
    link = Link(other)
    one.sendall(b'{"node"')
    assert link.receive() == []
    one.sendall(b': 1}\n{"beat": true}\n')
    assert link.receive() == [{"node": 1}, {"beat": True}]
    one.close()
    assert link.receive() is None
    link.close()


def test_a_message_of_endless_depth_is_none_of_ours() -> None:
    one, other = socket.socketpair()
    link = Link(other)
    one.sendall(b"[" * 60_000 + b"\n")
    assert link.receive() is None
    one.close()
    link.close()


@pytest.mark.slow
def test_whoever_else_has_the_output_open_holds_up_no_end(nodes: Nodes) -> None:
    script = '[ "$HOLDFAST_NODE_RANK" = 0 ] || echo $$ > begun; while [ ! -e held ]; do sleep 0.05; done'
    begun = nodes.run_dir / "begun"
    with nodes.begun("sh", "-c", script) as process:
        wait_until(lambda: begun.exists() and begun.read_text().endswith("\n"), what="the other node runs")
        held = os.open(f"/proc/{begun.read_text().strip()}/fd/1", os.O_WRONLY)
        (nodes.run_dir / "held").touch()
        process.communicate(timeout=LIMIT_S)
        os.close(held)
    assert process.returncode == 0
    assert [node["state"] for node in nodes.record["nodes"]] == ["ended", "ended"]


def test_nodes_that_do_not_come_up_are_named(nodes: Nodes) -> None:
    (nodes.bin / "srun").write_text("#!/bin/sh\necho srun: error: no such node\nexit 1\n")
    code, said = nodes.run("true")
    assert code == 71
    assert "srun: error: no such node" in said
    assert "node 1 (not named by Slurm yet) did not come up before srun gave up" in said


def _children(pid: int) -> list[str]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return file.read().split()
