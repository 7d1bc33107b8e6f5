"""Lines of known_hosts, held against ssh-keygen(1), which has the last word on whom a line speaks of."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from holdfast.desk.places.known_hosts import HostKey, find_keys, hash_name, parse_keys, replace_keys
from tests.each import each

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBHJrAdVdH5c4mA6CyBVU0V8zKk9ME+HDgVwbvWSeAmq"
OLD = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPtM0VMfzLYNmJ2NBFQHH+5aZUrGPJ3oiRYPIYQDQ1OE"
NEW = HostKey(*KEY.split())
NAME = "[gpu1.lab]:2222"
TEXT = f"""# a comment of {NAME}

gpu1.lab {OLD}
[gpu1.lab]:2200,{NAME} {OLD} with words
{NAME.upper()} {OLD}
*.lab,!other.lab {OLD}
[*.lab]:2222 {OLD}
[*.lab]:2222,!{NAME} {OLD}
{hash_name(NAME, b"0123456789abcdefghij")} {OLD}
{hash_name("gpu1.lab", b"0123456789abcdefghij")} {OLD}
|1|nonsense|AAAA {OLD}
@cert-authority *:2222 {OLD}
@revoked {NAME} {KEY}
{NAME}
"""


@each("name", [NAME, "gpu1.lab", "other.lab", "nobody", "[gpu1.lab]:2200"])
def test_whom_a_line_speaks_of_is_what_ssh_keygen_says(name: str, tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    # It warns of lines that are no keys, and goes on.
    path.write_text(TEXT)
    done = subprocess.run(["ssh-keygen", "-F", name, "-f", str(path)], capture_output=True, text=True, check=False)
    said = [int(line.split("line ")[1].split()[0]) for line in done.stdout.splitlines() if line.startswith("# Host")]
    assert [known.line for known in find_keys(TEXT, name, "")] == said


def test_a_fingerprint_is_as_ssh_keygen_shows_it(tmp_path: Path) -> None:
    path = tmp_path / "key.pub"
    path.write_text(f"{KEY}\n")
    done = subprocess.run(["ssh-keygen", "-l", "-f", str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == NEW.fingerprint


@each("hashed", [False, True])
def test_only_what_names_the_host_itself_is_replaced(hashed: bool) -> None:
    made = replace_keys(TEXT, NAME, (NEW,), hashed=hashed)
    before, after = TEXT.splitlines(), made.splitlines()
    assert after[3] == f"[gpu1.lab]:2200 {OLD} with words"
    kept = [line for number, line in enumerate(before, 1) if number not in (4, 5, 9)]
    assert [line for line in after[:-1] if line != after[3]] == kept
    assert parse_keys(after[-1]) == [NEW]
    assert after[-1].startswith("|1|" if hashed else f"{NAME} ")
    assert find_keys(after[-1], NAME, "")[0].key == NEW


def test_a_key_that_is_none_is_nobodys_and_stays() -> None:
    text = f"{NAME} ssh-ed25519 not-base64\n"
    assert find_keys(text, NAME, "") == []
    assert replace_keys(text, NAME, (NEW,), hashed=False) == f"{text}{NAME} {KEY}\n"


def test_a_file_without_a_newline_at_its_end_loses_nothing() -> None:
    assert replace_keys(f"other {OLD}", NAME, (NEW,), hashed=False) == f"other {OLD}\n{NAME} {KEY}\n"
    assert replace_keys("", NAME, (NEW,), hashed=False) == f"{NAME} {KEY}\n"


def test_bytes_that_are_no_text_and_other_line_ends_stay(tmp_path: Path) -> None:
    text = b"caf\xe9 nothing\r\nother x\x0by\n".decode("utf-8", "surrogateescape")
    assert (
        replace_keys(text, NAME, (NEW,), hashed=False)
        .encode("utf-8", "surrogateescape")
        .startswith(text.encode("utf-8", "surrogateescape"))
    )
