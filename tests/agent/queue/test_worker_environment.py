"""The environments of queued jobs: kept without secrets on the disk, given back whole, and held to what is missing."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.queue import environment
from holdfast.host.files import fallback
from holdfast.model.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.contract

PLAIN = {"PATH": "/usr/bin", "DATA": "/data", "HOLDFAST_RUN_ID": "not-this"}
SECRET = "hf_" + "a1B2" * 9


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[str]:
    directory = tmp_path / "queue"
    directory.mkdir(mode=0o700)
    yield str(directory)
    names = os.listdir(directory / "environments") if (directory / "environments").exists() else []
    environment.remove_unneeded(frozenset(name.removesuffix(".json") for name in names), directory=str(directory))


def read_everything(directory: str) -> str:
    found = []
    for place, _, names in os.walk(directory):
        for name in names:
            with open(os.path.join(place, name), encoding="utf-8") as file:
                found.append(file.read())
    return "\n".join(found)


def test_an_environment_comes_back_without_what_belonged_to_the_caller_alone(queue: str) -> None:
    name = environment.store_environment(PLAIN, directory=queue)
    stored = environment.load_environment(name, directory=queue)
    assert stored.environ == {"PATH": "/usr/bin", "DATA": "/data"}
    assert stored.missing == ()
    assert stat.S_IMODE(os.stat(f"{queue}/environments/{name}.json").st_mode) == 0o600


def test_equal_environments_are_stored_once_whatever_their_order(queue: str) -> None:
    first = environment.store_environment({**PLAIN, "HF_TOKEN": SECRET}, directory=queue)
    again = environment.store_environment({"HF_TOKEN": SECRET, **dict(reversed(PLAIN.items()))}, directory=queue)
    other = environment.store_environment({**PLAIN, "HF_TOKEN": SECRET + "x"}, directory=queue)
    assert first == again
    assert other != first
    assert environment.store_environment(PLAIN, directory=queue) == environment.store_environment(
        dict(PLAIN), directory=queue
    )


def test_a_secret_lies_in_memory_only_and_comes_back(queue: str) -> None:
    name = environment.store_environment({**PLAIN, "HF_TOKEN": SECRET}, directory=queue)
    assert SECRET not in read_everything(queue)
    assert "HF_TOKEN" in read_everything(queue)
    assert environment.load_environment(name, directory=queue).environ["HF_TOKEN"] == SECRET
    base = fallback.private_directory(fallback.MEMORY_ROOTS)
    assert base is not None
    facts = os.stat(f"{base}/queue/{name}.json")
    assert stat.S_IMODE(facts.st_mode) == 0o600
    assert facts.st_uid == os.getuid()


def test_a_secret_that_is_gone_is_named_and_can_be_given_again(queue: str) -> None:
    name = environment.store_environment({**PLAIN, "HF_TOKEN": SECRET, "WANDB_API_KEY": "b" * 40}, directory=queue)
    base = fallback.private_directory(fallback.MEMORY_ROOTS)
    os.unlink(f"{base}/queue/{name}.json")
    stored = environment.load_environment(name, directory=queue)
    assert stored.missing == ("HF_TOKEN", "WANDB_API_KEY")
    assert "HF_TOKEN" not in stored.environ
    assert environment.refresh_secrets(name, {"HF_TOKEN": "new", "DATA": "/other"}, directory=queue) == (
        "WANDB_API_KEY",
    )
    assert environment.refresh_secrets(name, {"WANDB_API_KEY": "c" * 40}, directory=queue) == ()
    whole = environment.load_environment(name, directory=queue)
    assert whole.environ["HF_TOKEN"] == "new"
    assert whole.environ["DATA"] == "/data"


def test_no_secret_is_kept_where_there_is_no_memory_for_it(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "MEMORY_ROOTS", ("/nonexistent",))
    with pytest.raises(StorageError, match="HF_TOKEN"):
        environment.store_environment({**PLAIN, "HF_TOKEN": SECRET}, directory=queue)
    assert SECRET not in read_everything(queue)
    assert environment.store_environment(PLAIN, directory=queue)


@pytest.mark.parametrize("name", ["../../etc/passwd", "0" * 32, "x"])
def test_an_environment_that_is_not_there_is_an_error(queue: str, name: str) -> None:
    with pytest.raises(StorageError):
        environment.load_environment(name, directory=queue)


def test_what_no_job_needs_any_more_is_forgotten_with_its_secrets(queue: str) -> None:
    kept = environment.store_environment({**PLAIN, "HF_TOKEN": SECRET}, directory=queue)
    gone = environment.store_environment({**PLAIN, "MORE": "1", "HF_TOKEN": SECRET}, directory=queue)
    environment.forget_all_but(frozenset({kept}), directory=queue)
    assert os.listdir(f"{queue}/environments") == [f"{kept}.json"]
    assert environment.load_environment(kept, directory=queue).missing == ()
    base = fallback.private_directory(fallback.MEMORY_ROOTS)
    assert not os.path.exists(f"{base}/queue/{gone}.json")


def test_the_umask_of_the_shell_is_kept(queue: str) -> None:
    before = os.umask(0o027)
    try:
        name = environment.store_environment(PLAIN, directory=queue)
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert environment.load_environment(name, directory=queue).umask == 0o027
