"""docs/run-directory.md is the contract: it equals the dataclasses, and a real run writes nothing it does not name."""

from __future__ import annotations

import json
import os
import re
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.control.create import create_run
from holdfast.agent.launch import start_supervisor
from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.run_view import RunView
from holdfast.diagnosis.ended import judgement
from holdfast.host.process.processes import is_alive
from holdfast.model import (
    container,
    finding,
    gpu,
    identity,
    job,
    lease,
    nodes,
    origin,
    receipt,
    results,
    run,
    verdict,
    wire,
)
from holdfast.model.job import JobSpec
from holdfast.model.record import fields, is_record
from holdfast.model.run import SCHEMA, STATES, RunState
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[2] / "docs" / "run-directory.md"
MODULES = (origin, job, gpu, container, run, identity, lease, finding, verdict, judgement, nodes, receipt, results)
CLASSES = {name: cls for module in MODULES for name, cls in vars(module).items() if is_record(cls)}
STORED = (
    *(origin.RunOrigin, RunState, run.RunRequest, run.CheckpointRequest, identity.WaitStatus, finding.Finding),
    *(judgement.EndedJudgement, origin.JobChange, run.LimitsRequest, nodes.NodesRecord, results.ResultsRecord),
    *(results.Destination, identity.LostOutput),
)
"""What is stored as a file of its own; everything else follows from their fields."""
PLAIN = {"str": "text", "int": "integer", "float": "number", "bool": "true or false", "State": "State"}


def describe_type(annotation: str) -> str:
    """An annotation in the page's words."""
    sides = re.split(r" \| (?![^\[]*\])", annotation.removesuffix(" | None"))
    if len(sides) > 1:
        null = ["null"] if annotation.endswith(" | None") else []
        return " or ".join([*(describe_type(side) for side in sides), *null])
    if annotation.endswith(" | None"):
        return f"{describe_type(annotation.removesuffix(' | None'))} or null"
    listed = re.fullmatch(r"tuple\[(.+), \.\.\.\]", annotation)
    if listed:
        return f"list of {describe_type(listed[1])}"
    mapped = re.fullmatch(r"dict\[str, (.+)\]", annotation)
    if mapped:
        return f"object of {describe_type(mapped[1])}"
    return PLAIN.get(annotation, annotation.replace(" | ", " or "))


def read_sections() -> dict[str, list[tuple[str, str]]]:
    """Each heading's table as (field, type)."""
    found: dict[str, list[tuple[str, str]]] = {}
    title = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        heading = re.match(r"##+ `([^`]+)`", line)
        row = re.match(r"\| `([a-z_0-9]+)` \| ([^|]+) \|", line)
        if heading:
            title = heading[1].rpartition("/")[2]
            found[title] = []
        elif row and title:
            found[title].append((row[1], row[2]))
    return found


def reachable() -> Iterator[str]:
    """The names of every dataclass that is stored somewhere below the stored ones."""
    pending = [cls.__name__ for cls in (*STORED, *STATES)]
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        yield name
        for field in fields(CLASSES[name]):
            pending += [word for word in re.findall(r"[A-Z]\w+", str(field.type)) if word in CLASSES]


@pytest.mark.process
@pytest.mark.parametrize("name", sorted(reachable()))
def test_each_stored_type_has_its_fields_in_the_page(name: str) -> None:
    described = [(field.name, describe_type(str(field.type))) for field in fields(CLASSES[name])]
    assert read_sections()[name] == described


@pytest.mark.process
def test_each_enumeration_has_its_values_in_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    words = {word for name in reachable() for f in fields(CLASSES[name]) for word in str(f.type).split()}
    enums = {
        name: cls
        for module in MODULES
        for name, cls in vars(module).items()
        if name in words and isinstance(cls, type) and issubclass(cls, Enum)
    }
    assert enums
    for name, cls in enums.items():
        assert f"| `{name}` | {', '.join(f'`{item.value}`' for item in cls)} |" in text
    assert f"schema {SCHEMA}" in text.splitlines()[0]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.requirement("OBS-01", "OBS-02")
def test_OBS_02_a_real_run_writes_what_the_page_names_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolated_environment: dict[str, str]
) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "1x24GiB")
    beat = '{"step": 3, "loss": 0.5, "epoch": 1, "phase": "train"}'
    body = f"echo '{beat}' > $HOLDFAST_HEARTBEAT; echo out; sleep 0.3; exit 3"
    spec = JobSpec(
        name="page",
        command=("sh", "-c", body),
        workdir=str(tmp_path),
        gpus=gpu.GpuRequest(count=1),
        gpu=job.GpuOptions(idle_window_s=0.0),
        health_every_s=0.05,
        limits=job.Limits(open_files=256),
    )
    environ = dict(os.environ)
    run_dir, _ = create_run(spec, f"{tmp_path}/runs", argv=("holdfast",), cwd=str(tmp_path), environ=environ)
    start_supervisor(run_dir, 1, environ=environ)
    view = wait_until(lambda: _if_over(run_dir), what="the end of the run")
    assert view is not None
    assert view.exit_code == 3, view
    _check_files(run_dir)
    _check_fields(view)


def _if_over(run_dir: str) -> RunView | None:
    view = observe_run(run_dir)
    supervisor = view.state.supervisor if view.state is not None else None
    return view if view.over and supervisor is not None and not is_alive(supervisor) else None


def _check_files(run_dir: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    for _, _, names in os.walk(f"{run_dir}/attempts"):
        for name in names:
            assert name in text, name
    for name in os.listdir(run_dir):
        assert f"`{name}" in text, name


def _check_fields(view: RunView) -> None:
    sections = read_sections()
    ended = [name for name, _ in sections["Ended"]]

    def named(title: str) -> set[str]:
        return {name for name, _ in sections[title]}

    assert set(view.manifest) - {"schema"} == named("manifest.json")
    assert set(view.exit) - {"schema"} == named("exit.json") | set(ended)
    for title in ("events.jsonl", "health.jsonl"):
        with open(f"{view.attempt_dir}/{title}", encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        assert lines, title
        for line in lines:
            assert set(line) <= named(title), title
    assert set(view.heartbeat) <= named("heartbeat.json")
    assert set(view.status) - {"schema"} == named("WaitStatus")
    for name in (wire.PREFLIGHT, wire.POSTFLIGHT):
        with open(f"{view.attempt_dir}/{name}", encoding="utf-8") as file:
            for item in json.load(file)["findings"]:
                assert set(item) == named("Finding")
