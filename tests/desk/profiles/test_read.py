"""Profiles as files: the package's, and the user's over them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.core.profile.schema import SECTIONS
from holdfast.core.profile.stale import stale_facts
from holdfast.desk.profiles.read import SHIPPED, is_own, list_profiles, load_profile, profile_of_place, user_directory
from holdfast.model.errors import NotPermitted, UsageError

pytestmark = pytest.mark.files

NAMES = (
    *("autodl", "colab", "featurize", "generic-ssh", "gpushare", "kaggle", "kubernetes", "lambda", "lanrui", "local"),
    *("matpool", "paperspace", "runpod", "slurm", "vast-ai"),
)
STAMP = 'verified_on = "2026-11-01"\nsource = "tried it"\n'


@pytest.fixture(autouse=True)
def _config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def write(name: str, text: str) -> Path:
    path = Path(user_directory()) / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.mark.requirement("PROF-04", "PROF-12", "PROF-02")
def test_every_shipped_profile_is_whole() -> None:
    assert list_profiles() == NAMES
    wrong = []
    for name in NAMES:
        profile = load_profile(name)
        verbs = {verb.name for verb in profile.verbs}
        if tuple(profile.sections) != SECTIONS:
            wrong.append(f"{name}: sections")
        if (profile.inherits == "") != (name == "generic-ssh"):
            wrong.append(f"{name}: inherits")
        wrong += [
            f"{name}: {tier.name}: {verbs ^ set(tier.survives)}" for tier in profile.tiers if verbs ^ set(tier.survives)
        ]
        rested_on = stale_facts(profile, "2026-11-23", ("verbs", "tiers"))
        wrong += [f"{name}: {key}" for key in rested_on]
    assert not wrong


@pytest.mark.requirement("PROF-09")
def test_a_users_file_overrides_one_field_and_the_origin_is_told() -> None:
    path = write("runpod", STAMP + '[tiers.workspace.survives]\nterminate = "yes"\n')
    shipped = next(iter(path.parent.glob("*.toml")))
    assert shipped == path
    profile = load_profile("runpod")
    tier = next(tier for tier in profile.tiers if tier.name == "workspace")
    assert tier.survives["terminate"] == "yes"
    assert profile.origins["tiers.workspace.survives.terminate"] == str(path)
    assert profile.origins["tiers.workspace.paths"] == "holdfast: runpod.toml"
    assert is_own("runpod")


def test_a_profile_of_ones_own_inherits_from_the_baseline() -> None:
    write("lab", 'title = "Ours"\n')
    profile = load_profile("lab")
    assert profile.inherits == "generic-ssh"
    assert profile.title == "Ours"
    assert "lab" in list_profiles()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('inherits = "lab"\n', "lab.toml:1: inherits: lab from lab: a profile inherits from itself"),
        ('inherits = "autodll"\n', "lab.toml:1: inherits: there is no profile 'autodll'; did you mean autodl?"),
        ('\ntitel = "x"\n', "lab.toml:2: titel: unknown key; did you mean title?"),
        ("grace = 5\n", "lab.toml:1: grace: a fact without verified_on and source"),
        (STAMP + "[verbs.stop]\nirreversible = true\n", "lab.toml:3: verbs.stop: has no how"),
        ("x = = 1\n", "lab.toml:1: not valid TOML"),
    ],
)
def test_bad_files_are_refused_with_file_line_and_key(text: str, words: str) -> None:
    write("lab", text)
    with pytest.raises(UsageError) as caught:
        load_profile("lab")
    assert words in str(caught.value)


def test_two_that_inherit_from_each_other_are_refused() -> None:
    write("one", 'inherits = "two"\n')
    write("two", 'inherits = "one"\n')
    with pytest.raises(UsageError, match="one from two from one"):
        load_profile("one")


@pytest.mark.parametrize("name", ["nope", "../local", "", "UPPER"])
def test_an_unknown_name_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(UsageError, match="there is no profile") as caught:
        load_profile(name)
    assert "generic-ssh" in caught.value.hint


@pytest.mark.requirement("RAIL-14")
def test_a_file_that_others_could_have_written_is_not_read() -> None:
    write("lab", '[variables]\nPROXY_HOOK = "echo"\n').chmod(0o666)
    with pytest.raises(NotPermitted, match="others could have written it"):
        load_profile("lab")


@pytest.mark.requirement("RAIL-14")
def test_no_shipped_profile_has_a_hook() -> None:
    for name in os.listdir(SHIPPED):
        assert "PROXY_HOOK =" not in Path(SHIPPED, name).read_text()


@pytest.mark.requirement("LOC-02")
def test_this_machine_has_no_meter_and_other_places_have_a_profile_only_when_they_say_so() -> None:
    profile = profile_of_place("", "local")
    assert profile is not None
    assert (profile.metered, profile.meter_stop) == ("none", "")
    assert profile_of_place("", "gpu1") is None


@pytest.mark.requirement("PROF-11")
def test_everything_that_is_billed_apart_is_named() -> None:
    (destroy,) = [verb for verb in load_profile("paperspace").verbs if verb.name == "destroy"]
    told = " ".join((destroy.how, *destroy.still_bills))
    for thing in ("public address", "storage", "snapshots"):
        assert thing in told
    assert load_profile("lambda").tiers[1].bills_after == ("poweroff", "terminate")
