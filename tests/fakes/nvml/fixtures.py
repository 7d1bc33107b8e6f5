"""Fixtures: `nvml_library` builds the fake driver once, `fake_nvml` is a box without cards that this process sees."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from .driver import FakeNvml, build_library

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of the fake libnvidia-ml.so.1."""
    return build_library(str(tmp_path_factory.mktemp("nvml")))


@pytest.fixture(scope="session")
def old_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same without the symbols that drivers before 535 lack."""
    return build_library(str(tmp_path_factory.mktemp("nvml-old")), old_driver=True)


@pytest.fixture
def fake_nvml(
    nvml_library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolated_environment: dict[str, str]
) -> FakeNvml:
    """A box whose driver this test's processes load; begin with ``fake_nvml.add_cards(2)``."""
    fake = FakeNvml(nvml_library, str(tmp_path / "nvml-state"))
    os.chmod(tmp_path / "nvml-state", 0o644)
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    return fake
