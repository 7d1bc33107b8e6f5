from __future__ import annotations

import pytest

from holdfast.core.code.requirements import (
    describe_replacing,
    filter_requirements,
    find_pyproject,
    is_met,
    is_requirements_file,
)

pytestmark = [pytest.mark.pure, pytest.mark.requirement("PRE-16", "B-28")]

TEXT = """\
# the usual
torch==2.1.0  # cuda
Torchvision>=0.16
torchaudio[all] ~= 2.1 ; python_version > "3.8"
torchmetrics==1.2
torch-geometric
torch_scatter
pytorch-lightning
-r other.txt
--extra-index-url https://example.invalid/torch
torch @ https://example.invalid/torch.whl
numpy
"""


def test_only_the_framework_goes_by_its_exact_names() -> None:
    kept, dropped = filter_requirements(TEXT)
    assert [line.split("=")[0].split()[0] for line in dropped] == ["torch", "Torchvision>", "torchaudio[all]", "torch"]
    for stays in (
        "torchmetrics==1.2",
        "torch-geometric",
        "torch_scatter",
        "pytorch-lightning",
        "-r other.txt",
        "numpy",
    ):
        assert f"{stays}\n" in kept
    assert "https://example.invalid/torch\n" in kept


def test_hashes_go_with_their_line() -> None:
    kept, dropped = filter_requirements(
        "torch==2.1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\nnumpy==1 \\\n  --hash=x\n"
    )
    assert kept == "numpy==1 \\\n  --hash=x\n"
    assert dropped == ("torch==2.1.0",)


def test_a_project_and_its_dependencies() -> None:
    text = (
        '[build-system]\nrequires = ["torch"]\n[project]\nname = "x"\ndependencies = [\n  "torch>=2",\n'
        '  # "torchaudio",\n  "torch-geometric[full]>=2", \'numpy\',\n]\n'
        '[project.optional-dependencies]\ndev = ["torch"]\n'
    )
    assert find_pyproject(text) == (("torch-geometric[full]>=2", "numpy"), ("torch>=2",))
    words = describe_replacing("pyproject.toml", text)
    assert "torch>=2" in words
    assert "torch-geometric[full]>=2, numpy" in words
    assert describe_replacing("pyproject.toml", "no toml [[[") == ""


def test_which_files_say_what_is_installed() -> None:
    names = (
        "requirements.txt",
        "a/requirements-dev.txt",
        "dev-requirements.in",
        "requirements/base.txt",
        "pyproject.toml",
    )
    assert all(map(is_requirements_file, names))
    assert not is_requirements_file("requirements.md")
    assert describe_replacing("requirements.txt", "torchmetrics\n") == ""


@pytest.mark.parametrize(
    ("asked", "installed", "met"),
    [
        ("torch==2.1", "2.13.0+cu126", False),
        ("torch==2.13", "2.13.0+cu126", True),
        ("torch == 2.13.0+cu126", "2.13.0+cu126", True),
        ("torch==2.13.0+cu118", "2.13.0+cu126", False),
        ("torch", "2.13.0", True),
        ("torch[opt]>=2.1,<3  # any", "2.13.0", True),
        ("torch>=2.14", "2.13.0", False),
        ("torch~=2.1", "2.13.0", True),
        ("torch~=2.1.0", "2.13.0", False),
        ("torch!=2.13.0", "2.13.0", False),
        ("torch==2.13.*", "2.13.1", True),
        ("torch (>=2.0) ; python_version > '3'", "2.13.0", True),
        ("torch @ https://example.invalid/torch.whl", "2.13.0", None),
        ("torch>=2.1", "2.14.0.dev20260101", None),
        ("torch=2", "2.0", None),
    ],
)
def test_what_is_there_meets_a_requirement_or_not(asked: str, installed: str, met: bool | None) -> None:
    assert is_met(asked, installed) is met
