"""``--env-file``: read as it is written, its mistakes named by line and never repeated where they may be secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.cli.job.env_file import PARAMETER
from holdfast.cli.job.options import resolve_job
from holdfast.model.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files


def read(path: Path, *variables: str) -> dict[str, str]:
    return resolve_job(None, ("true",), {PARAMETER: str(path), "job_env": variables}).env


def test_lines_are_variables_and_options_stand_over_them(tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_bytes(
        b"\xef\xbb\xbf# comment\r\n\r\nLR=1e-3\r\nexport MODE = 'a b'\nEMPTY=\nHASH=a#b $HOME\nQUOTED=\"x\"\nEQ=a=b\n"
    )
    assert read(path, "LR=2e-3") == {
        "LR": "2e-3",
        "MODE": "a b",
        "EMPTY": "",
        "HASH": "a#b $HOME",
        "QUOTED": "x",
        "EQ": "a=b",
    }


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("A=1\nHF_TOKEN=hunter2hunter2\n", r"env:2: env.HF_TOKEN: looks like a secret.*secret push PLACE HF_TOKEN"),
        ("A=1\nhunter2hunter2\n", "env:2: is not NAME=VALUE"),
        ("A=1\nA=hunter2hunter2\n", "env:2: env.A: written twice"),
        ('A="hunter2hunter2\n', "env:1: a quote"),
        ("A B=hunter2hunter2\n", "env:1: env.A B: is not a variable's name"),
        ("HOLDFAST_RUN_ID=hunter2hunter2\n", "env:1: env.HOLDFAST_RUN_ID: is holdfast's own"),
        ("A=\xff", "is not UTF-8"),
    ],
)
def test_a_mistake_is_named_by_its_line_and_not_repeated(tmp_path: Path, text: str, seen: str) -> None:
    path = tmp_path / "env"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=f"(?s){seen}") as caught:
        read(path)
    assert "hunter2" not in f"{caught.value}{caught.value.hint}{caught.value.details}"


def test_what_is_no_file_or_too_large_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UsageError, match="--env-file"):
            read(path)
    (tmp_path / "large").write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        read(tmp_path / "large")
