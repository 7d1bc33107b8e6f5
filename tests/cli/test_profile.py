"""``holdfast profile``, and what ``place add`` says of a profile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.core.profile.stale import stale_facts
from holdfast.desk.places.config import places_path
from holdfast.desk.profiles.read import load_profile, today, user_directory
from tests.cli.conftest import places

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli

__all__ = ["places"]
OVER = f'[tiers.workspace]\nverified_on = "{today()}"\nsource = "tried it"\nsurvives = {{ terminate = "yes" }}\n'


def write(name: str, text: str) -> Path:
    path = Path(user_directory()) / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.mark.slow
@pytest.mark.requirement("PROF-03", "PROF-09")
def test_PROF_09_one_field_of_ones_own_changes_the_answer_and_its_origin_is_shown(holdfast: Command) -> None:
    asked = ("profile", "survives", "runpod", "/workspace/model", "terminate")
    before = holdfast(*asked)
    assert (before.code, before.out.partition(":")[0]) == (1, "depends")
    assert "no until you have looked" in before.err
    path = write("runpod", OVER)
    after = holdfast(*asked, "--json")
    assert (after.code, after.json()["tier"], after.json()["proven"]) == (0, "workspace", True)
    shown = holdfast("profile", "show", "runpod")
    assert f"yours          {path}" in shown.out
    assert "tried it" in shown.out
    origins = holdfast("profile", "show", "runpod", "--json").json()["origins"]
    assert origins["tiers.workspace.survives.terminate"] == str(path)
    refused = holdfast("profile", "survives", "runpod", "/workspace", "terminat")
    assert (refused.code, "try terminate" in refused.err) == (66, True)


@pytest.mark.requirement("PROF-03")
@pytest.mark.parametrize(("path", "code", "answer"), [("$TMPDIR", 1, "no"), ("/scratch", 0, "yes")])
def test_PROF_03_a_cluster_keeps_scratch_and_not_the_nodes_own_disk(
    holdfast: Command, path: str, code: int, answer: str
) -> None:
    found = holdfast("profile", "survives", "slurm", path, "end-of-job")
    assert (found.code, found.out.partition(":")[0]) == (code, answer)


@pytest.mark.slow
@pytest.mark.requirement("PROF-04")
def test_profiles_are_listed_also_beside_one_that_cannot_be_read(holdfast: Command) -> None:
    write("broken", "grace = 5\n")
    write("mine", 'title = "Ours"\n')
    listed = holdfast("profile")
    assert listed.code == 0
    assert "mine         Ours" in listed.out
    assert "broken cannot be read" in listed.err
    found = holdfast("profile", "ls", "--json").json()
    assert [row["name"] for row in found["profiles"] if row["own"]] == ["mine"]
    assert "grace: a fact without verified_on and source" in found["problems"]["broken"]


@pytest.mark.requirement("PROF-08", "PROF-13")
def test_PROF_08_check_warns_of_an_old_fact_and_fails_for_an_undated_one(holdfast: Command) -> None:
    write("old", 'grace = 5\nverified_on = "2020-01-01"\nsource = "a page"\n')
    write("wrong", 'grace = 5\nnotify = "x"\n')
    found = holdfast("profile", "check", "old", "wrong", "--json").json()
    old = [item for item in found["findings"] if item["subject"] == "old"]
    assert [(item["level"], item["evidence"].rpartition(", ")[2]) for item in old] == [
        ("warn", "the oldest on 2020-01-01")
    ]
    wrong = [item["evidence"] for item in found["findings"] if item["subject"] == "wrong"]
    assert [text.partition("wrong.toml")[2] for text in wrong] == [
        ":2: notify: unknown key; did you mean notice?",
        ":1: grace: a fact without verified_on and source; write them in [facts.grace], or at the top of the file",
    ]
    assert found["exit_code"] == 78


@pytest.mark.requirement("PROF-08", "DOC-08")
def test_old_facts_are_one_line_and_one_command_says_that_they_are_still_so(holdfast: Command) -> None:
    old = 'verified_on = "2020-01-01"\nsource = "a page"\n'
    both = 2 + len(stale_facts(load_profile("generic-ssh"), today()))  # what it inherits: none, until that is old too
    write("old", f'{old}grace = 5\n[clocks.idle]\nbegins = "idle"\nafter = "2d"\nwhat = "it ends"\n')
    [found] = [
        item for item in holdfast("profile", "check", "old", "--json").json()["findings"] if item["level"] == "warn"
    ]
    assert found["evidence"].startswith(f"{both} of ")
    assert found["remedy"].endswith("holdfast profile verify old")
    refused = holdfast("profile", "verify", "old")
    assert (refused.code, "there is no terminal to ask on" in refused.err) == (64, True)
    assert "holdfast profile verify --yes old" in refused.err
    assert "clocks.idle: 2 days after idle: it ends (verified on 2020-01-01, a page)" in refused.out
    assert "grace: is 5.0 (verified on 2020-01-01, a page)" in refused.out
    done = holdfast("profile", "verify", "old", "--yes", "--source", "its page on clocks")
    assert (done.code, f"{user_directory()}/old.toml" in done.err) == (0, True)
    text = (Path(user_directory()) / "old.toml").read_text()
    assert text.count('source = "its page on clocks"') == both
    assert 'after = "2d"' in text
    assert "no fact of old is old" in holdfast("profile", "verify", "old").err
    wrong = holdfast("profile", "verify", "old", "verbs.none")
    assert (wrong.code, "old has no fact verbs.none" in wrong.err) == (66, True)


@pytest.mark.slow
@pytest.mark.requirement("PROF-05")
def test_PROF_05_the_first_place_of_a_profile_tells_its_dangers_and_asks(holdfast: Command) -> None:
    words = ("place", "add", "pod1", "root@203.0.113.7", "--port", "41022", "--profile", "runpod", "--no-probe")
    refused = holdfast(*words)
    assert refused.code == 64
    assert "mind: 30 days after stop: pods that were stopped for long are removed" in refused.out
    assert "mind: terminate cannot be undone; it destroys the container disk, a volume disk" in refused.out
    assert "a pod that was stopped may come back without a card" in refused.out
    assert "pod1 was not configured: runpod has acts that cannot be undone" in refused.err
    assert not Path(places_path()).exists()
    added = holdfast(*words, "--yes")
    assert added.code == 0
    assert 'profile = "runpod"' in Path(places_path()).read_text()
    second = holdfast("place", "add", "pod2", "root@203.0.113.8", "--profile", "runpod", "--no-probe")
    assert (second.code, "mind:" in second.out) == (0, False)
    unknown = holdfast("place", "add", "pod3", "root@203.0.113.9", "--profile", "runpood", "--no-probe")
    assert (unknown.code, "did you mean runpod?" in unknown.err) == (66, True)
    plain = holdfast("place", "add", "own", "me@own", "--profile", "local", "--no-probe")
    assert plain.code == 0, "nothing of it cannot be undone, so nobody is asked"


@pytest.mark.requirement("PROF-15")
def test_a_box_that_comes_back_elsewhere_keeps_its_profile_and_its_rent(holdfast: Command) -> None:
    path = Path(places_path())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        '[pod]\nhost = "root@203.0.113.7"\nprofile = "runpod"\n\n[pod.rent]\nsince = "2026-11-23T08:00Z"\nrate = 2.5\n'
        'currency = "USD"\nalso = ["image: 3 USD a month"]\n'
    )
    path.chmod(0o600)
    added = holdfast("place", "add", "pod", "root@203.0.113.9", "--port", "10022", "--replace", "--no-probe")
    assert added.code == 0, added.err
    shown = holdfast("place", "show", "pod")
    assert "profile  runpod" in shown.out
    assert "since 2026-11-23T08:00Z" in shown.out
    assert "2.5 USD an hour" in shown.out
    assert "billed besides: image: 3 USD a month" in shown.out
    assert holdfast("place", "show", "pod", "--json").json()["place"]["rent"]["rate"] == 2.5


@pytest.mark.slow
@pytest.mark.requirement("PROF-14")
def test_PROF_14_a_profile_is_begun_from_what_a_place_is(holdfast: Command, places: Callable[..., Path]) -> None:
    places()
    made = holdfast("profile", "probe", "gpu1", "--json").json()
    assert made["path"] == f"{user_directory()}/gpu1.toml"
    assert made["tiers"]
    assert holdfast("profile", "probe", "gpu1").code == 64
    assert holdfast("profile", "survives", "gpu1", "/", "destroy").code == 1


@pytest.mark.slow
@pytest.mark.requirement("PROF-06")
def test_PROF_06_what_a_profile_says_of_its_disks_is_measured_on_the_place_with_its_time(
    holdfast: Command, places: Callable[..., Path]
) -> None:
    base = places()
    config = Path(places_path())
    config.write_text(f'{config.read_text()}profile = "rented"\n')
    config.chmod(0o600)
    (base / "data").mkdir()
    tier = f'[tiers.data]\npaths = ["{base}/data", "{base}/gone"]\nsurvives = {{ destroy = "yes" }}\n'
    stamp = f'verified_on = "{today()}"\nsource = "its page"\n'
    write("rented", f'{stamp}inherits = "generic-ssh"\n{tier}cap = "900 TB"\ncap_inodes = 7\n')
    shown = holdfast("place", "probe", "gpu1")
    assert shown.code == 0, shown.err
    disks = shown.out.split("of its profile", 1)[1].split("locks", 1)[0]
    measured = next(line for line in disks.splitlines() if f"{base}/data: " in line)
    assert "inodes free" in measured
    assert "TB" not in measured
    assert f"{base}/gone: not there" in disks
    facts = holdfast("place", "show", "gpu1", "--json").json()["facts"]
    assert {"measured_at", "profile_disks"} <= set(facts)
    made = holdfast("profile", "probe", "gpu1", "--name", "mine")
    assert made.code == 0, made.err
    (data,) = [tier for tier in load_profile("mine").tiers if tier.name == "data"]
    assert data.cap_bytes == os.statvfs(base).f_blocks * os.statvfs(base).f_frsize, "and not what is stated"


@pytest.mark.slow
@pytest.mark.requirement("PROF-07", "RAIL-14")
def test_PROF_07_runs_and_jobs_of_the_queue_get_it_from_the_desk_and_a_hook_that_fails_ends_them(
    holdfast: Command, places: Callable[..., Path]
) -> None:
    base = places()
    (base / "data").mkdir()
    config = Path(places_path())
    config.write_text(f'{config.read_text()}profile = "rented"\n')
    config.chmod(0o600)
    rented = f'[variables]\nDATA_DIR = "{base}/data"\n'
    write("rented", rented)
    printed = ("sh", "-c", 'echo "data: $DATA_DIR, hook: $PROXY_HOOK"')
    ran = holdfast("run", "--on", "gpu1", "--no-code", "--", *printed)
    assert (ran.code, f"data: {base}/data, hook: \n" in ran.out) == (0, True), ran.err
    taken = holdfast("submit", "--on", "gpu1", "--no-code", "--name", "queued", "--wait", "--", *printed)
    assert taken.code == 0, taken.err
    assert f"data: {base}/data" in holdfast("logs", "gpu1:queued").out
    write("rented", f'{rented}PROXY_HOOK = "cd $DATA_DIR/no-such-directory"\n')
    failed = holdfast("run", "--on", "gpu1", "--no-code", "--", *printed)
    assert failed.code != 0
    assert "line 1 of setup failed" in failed.out + failed.err
    assert "data:" not in failed.out
