"""What is refused, or said, before anything is handed to Slurm."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.slurm.lab import Lab

pytestmark = pytest.mark.cluster


@pytest.mark.requirement("SLM-01", "SLM-04", "SLM-07")
def test_preflight_asks_slurm_itself_and_hands_nothing_in(lab: Lab) -> None:
    def findings(*words: str, code: int) -> dict[str, tuple[str, str]]:
        report = json.loads(lab("preflight", "--on", "lab", "--json", *words, "--", "true", code=code).stdout)
        return {item["id"]: (item["level"], item["evidence"]) for item in report["findings"]}

    (lab.code / "job.yaml").write_text("command: echo\nslurm: {partition: high, time: 30}\n")
    told = lab("preflight", "--on", "lab", "job.yaml").stdout
    assert "in partition high" in told
    assert "the job would start" in told

    found = findings("--slurm", "time=3", "--slurm", "signal=B:USR1@240", code=0)
    assert found["slurm.script"][0] == "pass"
    assert re.search(r"to start at \d{4}-\d\d-\d\d \d\d:\d\d UTC", found["slurm.script"][1])
    assert found["slurm.warning"][0] == "warn"
    assert "comes 4m00s before the time limit" in found["slurm.warning"][1]
    assert "the job has 3m00s in all" in found["slurm.warning"][1]
    assert found["slurm.root"][0] == "warn"
    assert found["slurm.node"][0] == "unknown"

    refused = findings("--gpus", "9", code=78)
    assert refused["slurm.script"][0] == "fail"
    assert "node configuration is not available" in refused["slurm.script"][1]
    beyond = findings("--slurm", "time=120", "--slurm", "partition=low", code=78)
    assert "beyond that of partition low" in beyond["slurm.script"][1]

    for words, said in (
        (("--gpus", "2", "--slurm", "gres=gpu:1"), "gpus: 2, and gres=gpu:1 of slurm gives 1"),
        (("--checkpoint-mirror", "$TMPDIR/saved"), "which each node has for itself"),
    ):
        for verb in ("preflight", "run"):
            assert said in lab(verb, "--on", "lab", *words, "--", "true", code=64).stderr
    assert lab.list_jobs() == []
    assert [path.name for path in lab.root.iterdir() if not path.name.startswith(".")] == []
