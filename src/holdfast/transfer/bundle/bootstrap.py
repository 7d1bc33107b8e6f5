"""Scripts for `sh -c`: one finds an interpreter and runs a program of ours, one runs the bundle.

Any login shell hands them on unchanged, and they hold no text of a user. A word that is a path is absolute, or relative
to the home there.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Mapping, Sequence

from .build import PACKAGE

_SENT = (
    "holdfast.model.errors",
    "holdfast.model.runs_root",
    "holdfast.host.files.ownership",
    "holdfast.transfer.bundle.receive",
)
"""Modules whose text is sent, each after those that it imports."""
_LOADER = """
import sys, types
for name, text in MODULES:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
sys.exit(module.main(CALL))
"""

MARK_MISSING, MARK_NO_PYTHON, MARK_TRIED, MARK_NONE, MARK_FOUND = "bundle", "python", "no", "none", "yes"
PIECE = 4000
"""Bytes of one word: bsd-csh takes no longer word than 8 KiB. The scripts join the pieces again."""

_PLACE = "case $1 in /*) d=$1;; *) d=$HOME/$1;; esac; "
_EXPAND = "case $2 in /*) p=$2;; *) p=$HOME/$2;; esac; m=$3; shift 3; IFS=; "
# Of the directory itself, not of what it leads to: another account may have made it in a shared root, and what `-O` of
# a link inside says is where the link leads. Source: POSIX, ls -n (the third word is the owner's number).
_OURS = 'a=${d%/*}; o() { IFS=" "; set -- $(ls -dn "$a" 2>/dev/null); IFS=; [ "$3" = "${a##*-}" ]; }; '
_THERE = _OURS + 'if o && [ -O "$d" ] && [ -r "$d/hf.py" ]; then [ -x "$p" ] && '
_MISSING = f'; echo "$m {MARK_NO_PYTHON}"; else echo "$m {MARK_MISSING}"; fi; exit 90'
RUN_SCRIPT = _PLACE + _EXPAND + _THERE + 'exec "$p" -X utf8 -I -S "$d/hf.py" "$*"' + _MISSING
"""Run the bundle at $1 by the interpreter $2 with the word in $4 ...; else say why not, behind the mark $3."""
LOOK_SCRIPT = _PLACE + _EXPAND + _THERE + "exit 0" + _MISSING
"""Whether `RUN_SCRIPT` would run something."""

_QUESTION = (
    "import sys;print(sys.executable);print(sys.version.split()[0]);sys.version_info<(3,10) and sys.exit(9);"
    "import fcntl,ctypes,sqlite3,zlib"
)
_PLACES = " ".join(
    [
        "/opt/conda/bin/python3",
        *(f'"$HOME"/{name}/bin/python3' for name in ("miniconda3", "anaconda3", "mambaforge", "miniforge3")),
        '"$HOME"/.local/share/uv/python/*/bin/python3',
        '"$HOME"/.pyenv/versions/*/bin/python3',
        "/usr/local/bin/python3 /usr/local/bin/python3.1[0-9] /usr/bin/python3 /usr/bin/python3.1[0-9]",
    ]
)
_TRY = (
    f't() {{ r=$("$1" -E -s -S -c "{_QUESTION}" 2>&1 </dev/null) && p=$1 && return 0; '
    f'echo "$m {MARK_TRIED} $1"; echo "$r"; return 1; }}; '
)
_LOOK = (
    "n() { for f in python3 python3.13 python3.12 python3.11 python3.10; do "
    'f=$(command -v $f) && t "$f" && return 0; done; '
    f'for f in {_PLACES}; do [ -x "$f" ] && t "$f" && return 0; done; return 1; }}; '
)
CONTACT_SCRIPT = (
    _PLACE
    + "w=$2; m=$3; shift 3; cd /; "
    + _TRY
    + _LOOK
    + f'case $w in only) t "$d";; first) t "$d" || n;; *) n;; esac || {{ echo "$m {MARK_NONE}"; exit 90; }}; '
    + f'echo "$m {MARK_FOUND} $p"; IFS=; '
    + 'exec "$p" -X utf8 -I -S -c "import base64,sys,zlib;exec(zlib.decompress(base64.b64decode(sys.argv[1])))" "$*"'
)
"""Find an interpreter ($2: `only` $1, $1 `first`, or `any`), and run the program in $4 ... with it.

Lines about the search are behind the mark $3: each that was tried in vain with what it said, then ``none`` or ``yes``.
"""


def build_program(call: Mapping[str, object]) -> tuple[str, ...]:
    """The words that are `receive.main(call)` on a box that has nothing of ours."""
    root = os.path.dirname(PACKAGE)
    modules = []
    for name in _SENT:
        with open(f"{root}/{name.replace('.', '/')}.py", encoding="utf-8") as file:
            modules.append((name, file.read()))
    text = f"MODULES = {modules!r}\nCALL = {dict(call)!r}\n{_LOADER}"
    return _cut(base64.b64encode(zlib.compress(text.encode(), 9)).decode())


def build_call(argv: Sequence[str], environ: Mapping[str, str], *, held: bool = False) -> tuple[str, ...]:
    """The words of a call of `hf.py`. `held`: its standard input is no input, and ends when the desk does."""
    return _cut(build_word(argv, environ, held=held))


def _cut(word: str) -> tuple[str, ...]:
    return tuple(word[start : start + PIECE] for start in range(0, len(word), PIECE))


def build_word(argv: Sequence[str], environ: Mapping[str, str], *, held: bool = False) -> str:
    """What `hf.py` is told."""
    call = {"argv": list(argv), "env": dict(environ), **({"held": True} if held else {})}
    return base64.b64encode(json.dumps(call).encode()).decode()
