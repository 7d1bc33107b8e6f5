"""``config.toml``: strict, under everything that is said of a job, changed without touching what else is in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.patrol.tell import Told, tell
from holdfast.cli.job.notify_option import choose_ways, read_ways
from holdfast.cli.job.options import resolve_change, resolve_job
from holdfast.cli.job.user_defaults import (
    defaults_path,
    find_key,
    read_channels,
    read_defaults,
    read_stated,
    set_default,
    unset_default,
)
from holdfast.core.job.job_hash import hash_job
from holdfast.core.messages.channels import list_targets
from holdfast.desk.settings.toml_edit import remove_value, set_value
from holdfast.model.errors import NotPermitted, UsageError
from holdfast.model.job import Priority
from tests.agent.messages.endpoints import make_program
from tests.cli.queues import say

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli


def state(text: str) -> str:
    path = defaults_path()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def test_the_command_line_wins_over_the_file_and_that_over_the_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state('priority = "normal"\n[gpu]\nwait = "1h"\n[notify]\nemail = "me@example.org"\nslack = ["secret:SLACK"]\n')
    plain = resolve_job(None, ("true",), {})
    assert (plain.priority, plain.gpu.wait_s, plain.channels.email) == (Priority.NORMAL, 3600.0, ("me@example.org",))
    said = capsys.readouterr().err
    assert (
        said == "holdfast: by your own defaults: priority, gpu.wait, notify.slack, notify.email (holdfast config ls)\n"
    )
    file = tmp_path / "job.yaml"
    file.write_text(
        "command: ['true']\npriority: low\nnotify: {email: [you@example.org]}\ngpu: {wait: 0}\n", encoding="utf-8"
    )
    job = resolve_job(str(file), (), {"job_gpu__wait": "2m"})
    assert (job.priority, job.gpu.wait_s, job.channels.email) == (Priority.LOW, 120.0, ("you@example.org",))
    assert job.channels.slack == ("secret:SLACK",)
    assert capsys.readouterr().err == "holdfast: by your own defaults: notify.slack (holdfast config ls)\n"
    # A queued job waits for cards as long as it takes, and a recorded one stays as it was recorded.
    assert resolve_job(None, ("true",), {}, queued=True).gpu.wait_s == 0
    assert resolve_change(job, None, (), {}) == job
    assert resolve_change(job, str(file), (), {}).channels.slack == ("secret:SLACK",)
    assert hash_job(plain) == hash_job(resolve_job(None, ("true",), {"job_notify__slack": ("secret:OTHER",)}))


def test_one_job_is_silent_against_the_defaults(tmp_path: Path) -> None:
    state('[notify]\nemail = "me@example.org"\ncommand = "tell-me"\nntfy = "https://ntfy.sh/me"\n')
    words = {"email": ("none",), "command": "none", "ntfy": ("none",), "webhook": ("none",), "on": ("none",)}
    typed = resolve_job(None, ("true",), {f"job_notify__{name}": word for name, word in words.items()})
    file = tmp_path / "job.yaml"
    file.write_text(
        "command: ['true']\nnotify: {email: none, command: none, ntfy: none, webhook: none, on: none}\n",
        encoding="utf-8",
    )
    written = resolve_job(str(file), (), {})
    for spec in (typed, written):
        assert list_targets(spec.notify, spec.channels) == ()
        assert (spec.notify.on, spec.notify.webhook) == ((), None)
    assert resolve_job(None, ("true",), {}).notify.command == ("tell-me",)


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (("ended,running",), ("ended", "running")),
        (("[alert, ended]",), ("alert", "ended")),
        (("[alert,", "ended]"), ("alert", "ended")),
        (("alert ended",), ("alert", "ended")),
        (("failed",), ("failed",)),
        (("none",), ()),
    ],
)
def test_a_list_of_moments_is_taken_as_people_and_config_ls_write_it(
    words: tuple[str, ...], stated: tuple[str, ...]
) -> None:
    set_default(find_key("notify.on"), words)
    assert read_channels()[0].on == stated
    assert resolve_job(None, ("true",), {"job_notify__on": words}).notify.on == stated


@pytest.mark.parametrize("words", [("ended,nope",), ("none", "ended"), (",",)])
def test_a_list_of_moments_with_another_word_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"is not one of|none stands alone"):
        set_default(find_key("notify.on"), words)


def test_a_changed_value_keeps_the_comment_of_its_line_and_its_indentation() -> None:
    text = '[notify]  # people\n  email = "a#1@b.c"  # me "x"\nevery = "6h"# tight\non = ["ended"]\n'
    made = set_value(text, "notify.email", "you@b.c", "config.toml")
    made = set_value(made, "notify.every", "2h", "config.toml")
    made = set_value(made, "notify.on", ["alert"], "config.toml")
    assert made == '[notify]  # people\n  email = "you@b.c"  # me "x"\nevery = "2h"# tight\non = ["alert"]\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prioritty = 'low'\n", "config.toml:1: prioritty: unknown key; did you mean priority?"),
        (
            "[notify]\nwebhok = 'https://x.example'\n",
            "config.toml:2: notify.webhok: unknown key; did you mean notify.webhook?",
        ),
        ("timeout = '1h'\n", "config.toml:1: timeout: unknown key; a job's other keys stand in its job file"),
        ("[gpu]\nwait = true\n", "config.toml:2: gpu.wait: "),
        ("priority = 'fast'\n", "config.toml:1: priority: 'fast' is not one of"),
        ("priority =\n", "config.toml:1: not valid TOML"),
    ],
)
def test_what_it_cannot_say_is_refused_with_its_line(text: str, words: str) -> None:
    state(text)
    with pytest.raises(UsageError) as caught:
        read_defaults()
    assert words in str(caught.value)


def test_a_file_that_others_could_have_written_is_not_read() -> None:
    os.chmod(state("[notify]\ncommand = 'x'\n"), 0o666)
    with pytest.raises(NotPermitted):
        read_defaults()


def test_a_default_is_set_and_taken_out_and_all_else_stays() -> None:
    path = state("# mine\n[notify] # how I hear\n# the team\non = ['ended']\n")
    set_default(find_key("wait"), ("2h",))
    set_default(find_key("notify.email"), ("me@example.org", "you@example.org"))
    set_default(find_key("--priority"), ("normal",))
    set_default(find_key("priority"), ("low",))
    with open(path, encoding="utf-8") as file:
        assert file.read() == (
            '# mine\npriority = "low"\n[notify] # how I hear\nemail = ["me@example.org", "you@example.org"]\n'
            "# the team\n"
            "on = ['ended']\n\n[gpu]\nwait = \"2h\"\n"
        )
    assert [(item.key, item.text) for item in read_stated()] == [
        ("priority", "low"), ("notify.email", "me@example.org you@example.org"), ("notify.on", "ended"),
        ("gpu.wait", "2h"),
    ]  # fmt: skip
    unset_default(find_key("notify.email"))
    unset_default(find_key("gpu.wait"))
    assert [item.key for item in read_stated()] == ["priority", "notify.on"]


def test_a_program_by_a_relative_path_is_stated_by_its_absolute_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (("./tell-me", "--short"), ("./tell-me --short",)):
        assert set_default(find_key("notify.command"), words).text == f"{tmp_path}/tell-me --short"
        assert read_channels()[0].command == (f"{tmp_path}/tell-me", "--short")
    for word in ("~/tell-me", "mail me@example.org"):
        assert set_default(find_key("notify.command"), (word,)).text == word


def test_a_program_that_is_not_there_is_stated_with_a_warning() -> None:
    for program, missing in (("./nothere", True), ("no-such-program", True), ("sh", False), ("none", False)):
        said = say("config", "set", "notify.command", program)
        assert (said.code, "warning: there is no program" in said.err) == (0, missing), said


def test_a_value_that_the_key_does_not_take_changes_nothing() -> None:
    for word, values in (
        ("notify.slack", ("https://hooks.slack.com/services/T0/B0/XX",)),
        ("priority", ("fast",)),
        ("wait", ("1h", "2h")),
        ("timeout", ("1h",)),
        ("no-such", ("1",)),
        ("notify.command", ("x\udcff",)),
    ):
        with pytest.raises(UsageError):
            set_default(find_key(word), values)
    assert not os.path.exists(defaults_path())


def test_a_file_that_a_program_cannot_change_is_left_to_a_person() -> None:
    inline = 'notify = { email = "a@b", on = ["ended"] }\n'
    for text in (inline, '[notify]\nemail = [\n  "a@b",\n]\n'):
        with pytest.raises(UsageError, match=r"by a program"):
            set_value(text, "notify.email", "c@d", "config.toml")
    state("priority = normal\n")
    with pytest.raises(UsageError, match=r"not valid TOML"):
        unset_default(find_key("priority"))
    with pytest.raises(UsageError, match=r"by a program"):
        remove_value(inline, "notify.email", "config.toml")


@pytest.mark.requirement("MON-17")
def test_a_patrol_tells_whom_the_defaults_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"nobody is named"):
        choose_ways(None, by_config=True)
    assert read_ways() is choose_ways(None, by_config=False) is None
    state('[notify]\nemail = "me@example.org"\n')
    monkeypatch.setenv("HOLDFAST_SENDMAIL", make_program(tmp_path / "sendmail", f"cat > {tmp_path}/mail"))
    ways = choose_ways(None, by_config=True)
    assert ways is not None
    message = {
        "state": "patrol",
        "summary": "1 run: 1 dead",
        "runs": [{"run_id": "r-1", "text": "every process is gone"}],
    }
    assert tell(ways, message) == Told(taken=True)
    assert "r-1: every process is gone" in (tmp_path / "mail").read_text(encoding="utf-8")
    make_program(tmp_path / "sendmail", "exit 1")
    assert "ended with 1" in tell(ways, message).problem
    both = choose_ways("notify-send x", by_config=True)
    assert both is not None
    assert (both.notify.command, both.channels.email) == (("notify-send", "x"), ("me@example.org",))


@pytest.mark.slow
def test_the_verb_and_a_run_that_says_which_defaults_it_took(holdfast: Command, tmp_path: Path) -> None:
    assert holdfast("config", "path").out.strip() == defaults_path()
    assert holdfast("config", "get", "priority").code == 1
    assert holdfast("config", "set", "notify.command", "./hook").code == 0
    assert holdfast("config", "get", "notify-command").out == f"{tmp_path}/hook\n"
    listed = holdfast("config", "ls")
    assert "notify.command" in listed.out
    assert holdfast("config", "ls", "--json").json()["stated"] == {"notify.command": f"{tmp_path}/hook"}
    make_program(tmp_path / "hook", f"cat > {tmp_path}/got")
    tried = holdfast("notify", "test")
    assert (tried.code, tried.err) == (0, "holdfast: command: taken\n")
    assert "a test message" in (tmp_path / "got").read_text(encoding="utf-8")
    assert "notify.command" in holdfast("preflight", "--", "true").err
    os.remove(tmp_path / "hook")
    failed = holdfast("notify", "test")
    assert failed.code == 1
    assert "not delivered" in failed.err
    assert "there is no program" in holdfast("preflight", "--", "true").out
    assert holdfast("config", "unset", "notify.command").code == 0
    assert holdfast("notify", "test").code == 64
