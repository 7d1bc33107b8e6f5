from __future__ import annotations

import pytest

from holdfast.core.code.refusals import (
    holds_private_key,
    is_credential_name,
    is_crooked_script,
    is_key_name,
    mend_line_ends,
)

pytestmark = pytest.mark.pure

DASHES = "-----"


@pytest.mark.requirement("XPORT-14")
def test_a_private_key_is_known_by_its_content() -> None:
    body = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW"
    for kind in (
        "OPENSSH PRIVATE KEY",
        "RSA PRIVATE KEY",
        "PRIVATE KEY",
        "ENCRYPTED PRIVATE KEY",
        "PGP PRIVATE KEY BLOCK",
    ):
        key = f"{DASHES}BEGIN {kind}{DASHES}\n{body}\n{DASHES}END {kind}{DASHES}\n"
        assert holds_private_key(key.encode()), kind
        assert holds_private_key(f"# mine\r\n{key}".replace("\n", "\r\n").encode()), kind
        assert holds_private_key(f"key: |\n  {key}".encode()), kind
    assert holds_private_key(f'{{"private_key": "{DASHES}BEGIN PRIVATE KEY{DASHES}\\n{body}"}}'.encode())


def test_what_only_speaks_of_keys_is_none() -> None:
    assert not holds_private_key(f"if line == '{DASHES}BEGIN RSA PRIVATE KEY{DASHES}': skip()".encode())
    assert not holds_private_key(f"{DASHES}BEGIN PUBLIC KEY{DASHES}\nabc\n".encode())
    assert not holds_private_key(rb"re.compile('-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----')")


@pytest.mark.parametrize("name", ["id_rsa", "id_ed25519", "id_ecdsa_sk", "work.ppk", "ssh_host_rsa_key"])
def test_names_of_private_keys(name: str) -> None:
    assert is_key_name(name)
    assert not is_key_name(f"{name}.pub")


@pytest.mark.parametrize(
    "name",
    [
        *(".env", ".env.local", ".ENV", "prod.env", ".netrc", "kaggle.json", "credentials", "credentials.json"),
        *("secrets.toml", ".git-credentials", "service-account-x.json", "store.p12", ".pypirc"),
    ],
)
def test_names_of_credentials(name: str) -> None:
    assert is_credential_name(name)


@pytest.mark.parametrize(
    "name",
    [
        ".env.example",
        ".env.sample",
        "environment.yml",
        "env.py",
        "credentials.py",
        "secrets.py",
        "token.json",
        "keys.py",
    ],
)
def test_names_that_are_none(name: str) -> None:
    assert not is_credential_name(name)


@pytest.mark.requirement("XPORT-16", "PRE-11")
def test_shell_scripts_with_windows_line_ends() -> None:
    assert is_crooked_script("a/run.sh", b"echo\r\n")
    assert is_crooked_script("launch", b"#!/bin/bash\r\necho\r\n")
    assert is_crooked_script("launch", b"#!/usr/bin/env bash\r\necho\r\n")
    assert not is_crooked_script("launch", b"#!/usr/bin/env python\r\n")
    assert not is_crooked_script("notes.txt", b"a\r\nb\r\n")
    assert not is_crooked_script("installer.sh", b"#!/bin/sh\n\0\r\n")
    assert mend_line_ends(b"a\r\nb\rc\r\n") == b"a\nb\rc\n"
