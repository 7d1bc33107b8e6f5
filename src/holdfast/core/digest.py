"""SHA-256 of bytes: ``hashlib`` loads OpenSSL, 2 ms and 3 MiB that most commands and supervisors never need."""

from __future__ import annotations


def sha256_hex(data: bytes) -> str:
    """The digest in hexadecimal."""
    import hashlib

    return hashlib.sha256(data).hexdigest()
