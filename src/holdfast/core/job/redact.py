"""Finds secrets in text, by names and shapes, so that they are not written down (OBS-04).

Two rules, because either alone leaks. By **name**: the value of ``HF_TOKEN`` or of ``--api-key`` is a secret whatever
it looks like. By **shape**: a GitHub token is a secret wherever it stands. The environment is recorded by allow-list
only, so that a name nobody thought of is left out, not leaked. Replaced text says so (`REDACTED`), so that a reader
can tell a removed value from an empty one.

Pure: text in, text out. A false alarm costs a word in a log; a miss costs an account, so doubt is redacted, except for
values which cannot be secrets (numbers, switches, references such as ``$HF_TOKEN``, file names), and for the name of a
secret behind an option of holdfast that takes one (``--secret HF_TOKEN``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from holdfast.model.pattern import compile_later

REDACTED = "[redacted]"
"""What stands in place of a secret."""

_WORDS = compile_later(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = frozenset(
    {"secret", "secrets", "password", "passwd", "passphrase", "passwort", "pwd", "credential", "credentials", "apikey"}
    | {"authorization", "cookie", "netrc", "privatekey", "accesskey", "secretkey", "authtoken", "accesstoken"}
)
_KEY_OWNERS = frozenset(
    {
        "api",
        "access",
        "secret",
        "private",
        "auth",
        "account",
        "encryption",
        "signing",
        "ssh",
        "deploy",
        "service",
        "app",
    }
    | {"license", "master", "storage", "wandb", "openai", "anthropic", "comet", "neptune", "kaggle", "aws", "shared"}
)
# "token" is also a word of language models: these neighbours make it a count, an id or a file, not a credential.
_TOKEN_NEIGHBOURS = frozenset(
    {
        "max",
        "min",
        "num",
        "n",
        "pad",
        "eos",
        "bos",
        "mask",
        "sep",
        "cls",
        "unk",
        "new",
        "per",
        "special",
        "image",
        "prefix",
    }
    | {"dim", "id", "ids", "type", "types", "len", "length", "count", "size", "path", "file", "dir", "limit", "budget"}
    | {
        "batch",
        "ratio",
        "rate",
        "level",
        "classification",
        "drop",
        "dropout",
        "mixing",
        "merging",
        "embedding",
        "format",
        "stop",
        "start",
        "end",
        "pooling",
        "weighting",
    }
)
_PLAIN_NAMES = frozenset({"pwd", "oldpwd", "ssh_auth_sock", "xauthority", "gpg_agent_info"})
_POINTERS = frozenset({"path", "file", "dir", "name", "url", "env", "var", "helper", "store", "backend", "provider"})

_SHAPES = compile_later(
    r"""
      gh[pousr]_[A-Za-z0-9]{20,} | github_pat_[A-Za-z0-9_]{20,}          # GitHub
    | glpat-[A-Za-z0-9_-]{20,}                                           # GitLab
    | (?<![A-Za-z0-9_])hf_[A-Za-z0-9]{20,}                               # Hugging Face
    | (?<![A-Za-z0-9_-])sk-[A-Za-z0-9_-]{20,}                            # OpenAI, Anthropic
    | (?<![A-Z0-9])(?:AKIA|ASIA)[0-9A-Z]{16}(?![A-Z0-9])                 # AWS
    | (?<![A-Za-z0-9_-])AIza[0-9A-Za-z_-]{35}                            # Google
    | xox[abeprs]-[A-Za-z0-9-]{10,}                                      # Slack
    | https://hooks\.slack\.com/services/[A-Za-z0-9/]+                   # Slack's webhook address is its own credential
    | https://(?:\w+\.)?discord(?:app)?\.com/api/webhooks/[\w/-]+        # and so is Discord's
    | https://open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/v2/hook/[\w-]+   # Feishu, Lark
    | https://qyapi\.weixin\.qq\.com/cgi-bin/webhook/send\?key=[\w-]+   # WeCom
    | https://[\w.-]+\.office\.com/webhook[\w/@.-]+                       # Teams
    | https?://[\w.:-]+/hooks/[A-Za-z0-9]{20,}                           # Mattermost, Rocket.Chat
    | (?<!\d)\d{8,10}:AA[A-Za-z0-9_-]{32,}                               # Telegram bot
    | npm_[A-Za-z0-9]{36} | pypi-AgE[A-Za-z0-9_-]{20,}                   # package registries
    | wandb_v1_[A-Za-z0-9_]{20,} | rpa_[A-Z0-9]{30,} | dop_v1_[a-f0-9]{40,} | (?<![A-Za-z0-9_])r8_[A-Za-z0-9]{30,}
    | (?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}   # JSON web token (RFC 7519)
    | (?<![A-Za-z0-9_])tk_[a-z0-9]{20,}                                  # ntfy
    | (?<=login[ ])[0-9a-f]{40}(?![0-9a-f]) | (?:(?<=_KEY[ ])|(?<=_TOKEN[ ])|(?<=_SECRET[ ]))[A-Za-z0-9_+/-]{20,}
    | -----BEGIN[ ](?:[A-Z0-9]+[ ])*PRIVATE[ ]KEY-----(?:.*?-----END[ ](?:[A-Z0-9]+[ ])*PRIVATE[ ]KEY-----|.*)
    """,
    re.VERBOSE | re.DOTALL,
)
# A scheme is bounded: from each word of ``a-a-a-...`` on, the search would be quadratic.
_URL_PASSWORD = compile_later(r"\b([A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@]*):([^\s/@]+)@")
_URL_USER = compile_later(
    r"""
    \b(https?://)
    # A DSN of Sentry: its key is public.
    (?![0-9a-f]{32}@(?:[\w-]{1,63}\.){0,8}sentry(?:\.[\w-]{1,63}){1,8}(?::\d+)?/\d+(?![\w/.-]))
    [A-Za-z0-9_.~%-]{20,}@
    """,
    re.VERBOSE,
)
"""A user so long is a token: ``https://TOKEN@github.com``."""
_URL_KEY = compile_later(
    r"(?P<front>[?&](?P<name>x-(?:amz|goog|oss)-(?:signature|credential)|signature|sig|key|code|auth)=)"
    r"(?P<value>[^\s&#\"'<>\[]{8,})",
    re.IGNORECASE,
)
"""Addresses that are signed, of which whoever has one may use it."""
_PLAIN_PIECE = r"(?:[a-z]{1,19}\d{0,8}|(?:[A-Z][a-z]{2,11}){1,3}\d{0,4}|[A-Z]{1,11}\d{0,4}|\d+)"
_PLAIN_WORDS = compile_later(
    rf"{_PLAIN_PIECE}(?:(?:[-_./:,+]|%2[0Ff])+{_PLAIN_PIECE})*[-_./:,;()]*|\$.*|\{{\w+\}}", re.DOTALL
)
"""Words, numbers, variables and placeholders; a key has digits and letters mixed, or is longer than a word."""
_BEARER = compile_later(r"\b(Bearer|Basic)\s+([A-Za-z0-9+/=._~-]{12,})", re.IGNORECASE)
# A name is tried at its beginning only: from each letter of a long word on, the search would be quadratic.
_ASSIGNED = compile_later(
    r"""(?<![A-Za-z0-9_.-])[0-9.-]*(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)["']?\]?[ \t]*(?:=|:(?=[\s"']))[ \t]*"""
)
_VALUE = compile_later(r""""[^"\n]*"|'[^'\n]*'|[^\s,;&|"'}\])]+""")
_FLAG = compile_later(
    r"""(?<!\S)(?P<flag>--?[A-Za-z][A-Za-z0-9_-]*)(?P<gap>[ \t]+)(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s;&|-]\S*)"""
)
_INPUT = compile_later(r"\[type=\w+, input_value=(?P<value>[^\n]*?)(?=, input_type=|\n|\Z)")
"""What pydantic says of a wrong value; the field's name stands before. Source: pydantic-core, `ValidationError`."""
INPUT_REACH = 300
_HEX_KEY = compile_later(r"[0-9a-f]{32,64}", re.ASCII)
_HARMLESS = compile_later(
    r"""["']?(?:|[+-]?\d+(?:\.\d+)?|true|false|yes|no|on|off|none|null|empty|dummy|\$.*|/.*|\.{1,2}/.*|~.*|env:.*|\[redacted\]|\[?(?-i:NAME))["']?""",
    re.IGNORECASE | re.DOTALL,
)
_VARIABLE = compile_later(r"""["'`]?(?P<name>[A-Z]+(?:_[A-Z]+)+)["'`]?[.,:;)]*""")
"""The name of a variable of the environment; what has digits within may be a key."""
NAMES_OF_SECRETS = frozenset({"--secret", "--notify-smtp-password"})
"""Options of holdfast that take the name of a secret, or where it stands; behind another, a name may be a password."""

ALLOWED_NAMES = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TERM",
        "HOSTNAME",
        "PWD",
        "TMPDIR",
        "TMP",
        "TEMP",
    }
    | {"LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_HUB_OFFLINE"}
    | {
        "TRANSFORMERS_CACHE",
        "TRANSFORMERS_OFFLINE",
        "TOKENIZERS_PARALLELISM",
        "WANDB_MODE",
        "WANDB_DIR",
        "WANDB_PROJECT",
    }
    | {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"}
    | {"OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "XLA_FLAGS", "GLOO_SOCKET_IFNAME"}
    | {"XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "TRITON_CACHE_DIR", "MALLOC_ARENA_MAX"}
)
"""Names of the environment whose values say how a run was set up and are recorded."""
ALLOWED_PREFIXES = (
    *("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "NCCL_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "OMP_", "KMP_", "MKL_"),
    *("NUMEXPR_", "SLURM_", "HOLDFAST_", "PYTHON", "CONDA_", "LC_", "JAX_", "TF_", "ROCR_", "HIP_"),
)
"""Beginnings of names that are recorded; a secret-shaped name or value is still left out."""


def is_secret_name(name: str) -> bool:
    """Whether a variable, flag or key of this name holds a secret: ``HF_TOKEN``, ``--api-key``, ``db.password``.

    ``PWD``, ``TOKENIZERS_PARALLELISM``, ``max_tokens`` and ``sort_key`` are not secrets.
    """
    plain = name.strip("-").lower()
    if plain in _PLAIN_NAMES or plain.endswith("_pwd_dir"):
        return False
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or words[-1] in _POINTERS:
        return False
    if any(word in _SECRET_WORDS for word in words):
        return True
    for position, word in enumerate(words):
        if word == "token" and _TOKEN_NEIGHBOURS.isdisjoint(words):
            return True
        if word in ("key", "keys") and position and words[position - 1] in _KEY_OWNERS:
            return True
    return words == ["auth"] or words[-2:] in (["auth", "header"], ["access", "tokens"])


def is_secret_value(value: str, name: str = "") -> bool:
    """Whether `value` has the shape of a well-known secret, or `name` says that any such value is one.

    A bare run of 32 to 64 hex digits is a key only where the name hints at one (as wandb's is): elsewhere it is a hash.
    """
    if _SHAPES.search(value) or _has_url_password(value) or _BEARER.search(value):
        return True
    if name and is_secret_name(name):
        return _HARMLESS.fullmatch(value) is None
    return bool(name and "key" in name.lower() and _HEX_KEY.fullmatch(value))


def holds_secret(name: str, value: str) -> bool:
    """Whether a variable of a job is, or has within, what looks like a secret: also a signed address, or a flag."""
    return is_secret_name(name) or is_secret_value(value, name) or redact_text(value) != value


def _has_url_password(value: str) -> bool:
    return any(not match[2].startswith("$") and match[2] != REDACTED for match in _URL_PASSWORD.finditer(value))


def redact_env(environ: Mapping[str, str], extra: Iterable[str] = ()) -> dict[str, str]:
    """The recordable part of an environment: names on the allow-list (and in `extra`), sorted, never secret-shaped.

    A name that is allowed but whose name or value looks secret keeps its place with `REDACTED` as its value.
    """
    wanted = ALLOWED_NAMES.union(extra)
    kept: dict[str, str] = {}
    for name in sorted(environ):
        if name in wanted or name.startswith(ALLOWED_PREFIXES):
            value = environ[name]
            kept[name] = REDACTED if is_secret_name(name) or is_secret_value(value, name) else value
    return kept


def redact_argv(argv: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The argument vector without secrets, and what was found: one description per hit, which never holds the value.

    Knows ``--api-key VALUE``, ``--api-key=VALUE``, ``NAME=VALUE``, ``-H 'Authorization: Bearer ...'``, secret shapes
    anywhere, and assignments inside a shell's ``-c`` text.
    """
    cleaned: list[str] = []
    found: list[str] = []
    flag = ""
    for position, argument in enumerate(argv):
        if flag and not argument.startswith("-") and not _is_plain_argument(flag, argument):
            cleaned.append(REDACTED)
            found.append(f"argument {position} (the value of {flag})")
            flag = ""
            continue
        flag = argument if _is_secret_flag(argument) else ""
        safe = redact_text(argument)
        if safe != argument:
            name = argument.partition("=")[0]
            named = f" ({name})" if "=" in argument and len(name) < 60 and redact_text(name) == name else ""
            found.append(f"argument {position}{named}")
        cleaned.append(safe)
    return tuple(cleaned), tuple(found)


def _is_secret_flag(argument: str) -> bool:
    return argument.startswith("-") and "=" not in argument and " " not in argument and is_secret_name(argument)


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` with every secret shape, every secret assignment and every given secret replaced by `REDACTED`.

    Args:
        text: Anything: a command line, a diff, a config file, a log line.
        secrets: Values known to be secret; shorter than four characters are not looked for.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 4:
            text = text.replace(secret, REDACTED)
    text = _SHAPES.sub(REDACTED, text)
    if "://" in text:
        text = _URL_PASSWORD.sub(_redact_url, text)
        text = _URL_USER.sub(lambda match: f"{match[1]}{REDACTED}@", text)
        text = _URL_KEY.sub(_redact_url_key, text)
    text = _BEARER.sub(lambda match: f"{match[1]} {REDACTED}", text)
    if "input_value=" in text:
        text = _INPUT.sub(_redact_input, text)
    if "=" in text or ":" in text:
        text = _redact_assignments(text)
    return _FLAG.sub(_redact_flag, text) if "-" in text else text


def _redact_url(match: re.Match[str]) -> str:
    return match[0] if match[2].startswith("$") else f"{match[1]}:{REDACTED}@"


def _redact_url_key(match: re.Match[str]) -> str:
    # ``x-amz-signature`` is a signature whatever stands in it; ``key`` and ``code`` are names of other things, too.
    is_plain = "-" not in match["name"] and _PLAIN_WORDS.fullmatch(match["value"]) is not None
    return match[0] if is_plain else f"{match['front']}{REDACTED}"


def _redact_assignments(text: str) -> str:
    """Every secret assignment, also one that is the value of a harmless name: ``error: HF_TOKEN=...``."""
    parts, at = [], 0
    for head in _ASSIGNED.finditer(text):
        # The search goes on in the values of harmless names; names inside of a secret value are gone with it.
        if head.start() < at or not is_secret_name(head["name"]):
            continue
        value = _VALUE.match(text, head.end())
        if value is None or _is_known_harmless(head["name"], value[0]):
            continue
        quote = value[0][0] if value[0][0] in "\"'" else ""
        parts.append(f"{text[at : head.end()]}{quote}{REDACTED}{quote}")
        at = value.end()
    return "".join((*parts, text[at:]))


def _is_known_harmless(name: str, value: str) -> bool:
    """Whether the value of a secret's name is no secret: a number, a path, a variable, what was redacted already."""
    if name.lower() == "authorization" and value.lower() in ("bearer", "basic"):
        return True
    return _HARMLESS.fullmatch(value) is not None or value.startswith(REDACTED[:-1])


def _redact_input(match: re.Match[str]) -> str:
    """A field with the name of a secret has its value only here, and no sign between the two."""
    before = match.string[max(0, match.start() - INPUT_REACH) : match.start()].rpartition("]")[2]
    if not any(map(is_secret_name, before.split())) or _HARMLESS.fullmatch(match["value"]) is not None:
        return match[0]
    return f"{match[0][: match.start('value') - match.start()]}{REDACTED}"


def _redact_flag(match: re.Match[str]) -> str:
    if not is_secret_name(match["flag"]) or _is_plain_argument(match["flag"], match["value"]):
        return match[0]
    return f"{match['flag']}{match['gap']}{REDACTED}"


def _is_plain_argument(flag: str, value: str) -> bool:
    """Whether the argument of a secret's option is no secret: what no value can be, or the name that is asked for."""
    named = _VARIABLE.fullmatch(value) if flag in NAMES_OF_SECRETS else None
    return _HARMLESS.fullmatch(value) is not None or (named is not None and is_secret_name(named["name"]))


_LITERAL = compile_later(
    r"""(?P<name>[A-Za-z_][\w.]*)(?P<sign>["']?\]?\s*[=:]\s*)(?P<quote>["'])(?P<value>[^"'\s]{6,})(?P=quote)"""
)
_EXPORT = compile_later(
    r"""(?m)^(?P<front>[+-]?\s*(?:export\s+)?)(?P<name>[A-Z][A-Z0-9_]+)=(?P<value>[^\s"'$`(]{3,})"""
)


def redact_code(text: str) -> str:
    """As `redact_text` for programs and diffs, where ``token = next(tokens)`` is no secret but ``"..."`` may be one.

    Replaced are secret shapes, quoted literals given to a secret name, and ``NAME=value`` lines as shells have them.
    """
    text = _SHAPES.sub(REDACTED, text)
    text = _URL_PASSWORD.sub(_redact_url, text)
    text = _LITERAL.sub(_redact_literal, text)
    return _EXPORT.sub(_redact_export, text)


def _redact_literal(match: re.Match[str]) -> str:
    if not is_secret_name(match["name"]) or _HARMLESS.fullmatch(match["value"]) is not None:
        return match[0]
    return f"{match['name']}{match['sign']}{match['quote']}{REDACTED}{match['quote']}"


def _redact_export(match: re.Match[str]) -> str:
    if not is_secret_name(match["name"]) or _HARMLESS.fullmatch(match["value"]) is not None:
        return match[0]
    return f"{match['front']}{match['name']}={REDACTED}"
