"""What no tree of code may carry: private keys, files that hold credentials; and what is mended on the way (XPORT-14).

By name and by content, because either alone leaks. A private key stays at home whatever the person says; a file that
usually holds credentials goes where ``.holdfastignore`` asks for it by name (``!.env``). Pure: bytes come in.
"""

from __future__ import annotations

import re

from holdfast.core.run.scripts import is_shell, split_shebang
from holdfast.model.pattern import compile_later

LARGEST_UNTRACKED_BYTES = 100 * 1024**2
"""A larger file that git does not have is data or a checkpoint."""
LARGEST_SCRIPT_BYTES = 1024**2
LARGEST_POINTER_BYTES = 1024
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
"""Source: git-lfs, docs/spec.md: "version" is the first line; a pointer is shorter than 1024 bytes."""

_KEY_NAME = compile_later(r"id_(?:rsa|dsa|ecdsa|ed25519|ecdsa_sk|ed25519_sk|xmss)|.+\.ppk|ssh_host_\w+_key")
_CREDENTIALS = compile_later(
    r"""\.env(?:\.(?!(?:example|sample|template|dist|defaults?)$).+)? | .+\.env | \.envrc
    | \.netrc | _netrc | \.pypirc | \.git-credentials | \.pgpass | \.my\.cnf | \.htpasswd | \.vault-token
    | \.boto | \.s3cfg
    | kaggle\.json | credentials(?:\.(?:json|ya?ml|toml|ini|csv|db))? | client_secrets?(?:_.*)?\.json
    | secrets?\.(?:json|ya?ml|toml|ini|env|txt) | service[-_]account.*\.json | application_default_credentials\.json
    | .+\.(?:p12|pfx|jks|keystore|kdbx)""",
    re.VERBOSE,
)
_KEY = compile_later(
    rb"(?:^|[\"'>|:= \t])-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"
    rb"(?:[ \t]*\r?$|(?:\\r)?\\n[A-Za-z0-9+/=]{8})",
    re.MULTILINE,
)
"""The header on a line of its own, or in a string whose line ends are written ``\\n`` (a service account's JSON)."""
_SHELL_NAMES = (".sh", ".bash", ".zsh", ".ksh", ".dash")


def is_key_name(name: str) -> bool:
    """Whether a file of this name (without directories) is a private key by custom."""
    return _KEY_NAME.fullmatch(name) is not None


def is_credential_name(name: str) -> bool:
    """Whether a file of this name (without directories) holds credentials by custom; ``.env.example`` does not."""
    return _CREDENTIALS.fullmatch(name.lower()) is not None


def holds_private_key(data: bytes) -> bool:
    """Whether a part of a file has the beginning of a private key (PEM, OpenSSH, PGP)."""
    return b"PRIVATE KEY" in data and _KEY.search(data) is not None


def is_pointer(data: bytes) -> bool:
    """Whether a file's content is what git LFS puts in the place of one that was not fetched."""
    return len(data) < LARGEST_POINTER_BYTES and data.startswith(LFS_POINTER)


def is_crooked_script(path: str, data: bytes) -> bool:
    """Whether a file is a shell script with Windows line ends: a shell takes the carriage return for part of a word."""
    if len(data) > LARGEST_SCRIPT_BYTES or b"\r\n" not in data or b"\0" in data:
        return False
    if path.endswith(_SHELL_NAMES):
        return True
    first = data[:256].split(b"\n", 1)[0].decode("utf-8", "replace")
    return is_shell(split_shebang(first) or ())


def mend_line_ends(data: bytes) -> bytes:
    """A script as it is sent."""
    return data.replace(b"\r\n", b"\n")
