"""What a line of setup that failed leaves in the output."""

from __future__ import annotations

import re
import subprocess

import pytest

from holdfast.core.job.setup import FAILED, wrap_in_setup

pytestmark = pytest.mark.process
TOKEN = "hf_" + "a1" * 17


@pytest.mark.requirement("OBS-04")
@pytest.mark.parametrize("line", [f"export HF_TOKEN={TOKEN} && false", f"if true\nthen exit 1 # {TOKEN}\nfi", "exit 0"])
def test_OBS_04_a_line_that_failed_is_told_as_one_line_without_its_secrets(line: str) -> None:
    done = subprocess.run(wrap_in_setup((line,), ("echo", "begun")), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (told,) = done.stderr.splitlines()
    assert re.fullmatch(FAILED, told)
    assert TOKEN not in told
