"""Which file a shell reads while it runs, and what would be installed on each run."""

from __future__ import annotations

import pytest

from holdfast.core.run.scripts import (
    asks_for_itself,
    count_closing_lines,
    find_install,
    find_shell_script,
    is_shell,
    split_shebang,
)
from tests.each import each

pytestmark = pytest.mark.pure


@each(
    ("argv", "index"),
    [
        (["bash", "a.sh"], 1),
        (["/bin/sh", "-e", "-u", "a.sh", "-x"], 3),
        (["bash", "-eo", "pipefail", "a.sh"], 2),
        (["bash", "-o", "pipefail", "a.sh"], 3),
        (["bash", "--login", "--", "a.sh"], 3),
        (["bash", "-c", "a.sh"], None),
        (["bash", "-lc", "a.sh"], None),
        (["bash", "-s", "a.sh"], None),
        (["bash", "-"], None),
        (["bash"], None),
        (["bash", "-e"], None),
        (["python", "a.py"], None),
        ([], None),
    ],
)
def test_the_script_of_a_shell(argv: list[str], index: int | None) -> None:
    found = find_shell_script(argv)
    assert (None if found is None else found.index) == index


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("#!/bin/bash", ["/bin/bash"]),
        ("#! /bin/bash -e -u", ["/bin/bash", "-e -u"]),
        ("#!/usr/bin/env bash", ["bash"]),
        ("#!/usr/bin/env -S bash -e", ["bash", "-e"]),
        ("#!/usr/bin/env VAR=1 bash", None),
        ("echo", None),
        ("#!", None),
    ],
)
def test_interpreter_lines(line: str, words: list[str] | None) -> None:
    assert split_shebang(line) == words


def test_shells_are_told_from_other_interpreters() -> None:
    assert is_shell(["/bin/dash"])
    assert not is_shell(["python3"])
    assert not is_shell([])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('cd "$(dirname "$0")"', True),
        ("x=${BASH_SOURCE[0]}", True),
        ("x=${0%/*}", True),
        ("echo $05 $1", False),
        ("# uses $0\necho", False),
        ("awk '{print $01}'", False),
    ],
)
def test_scripts_that_ask_for_their_own_place(text: str, expected: bool) -> None:
    assert asks_for_itself(text) is expected


@pytest.mark.requirement("RAIL-09")
@each(
    ("text", "found"),
    [
        ("pip install torch", "pip install"),
        ("cd x && pip3 -q install -r r.txt", "pip3 -q install"),
        ("python -m pip install x", "python -m pip install"),
        ("/venv/bin/pip install x", "pip install"),
        ("conda install -y numpy", "conda install"),
        ("conda env create -f e.yml", "conda env create"),
        ("sudo apt-get install -y gcc", "apt-get install"),
        ("uv sync; python t.py", "uv sync"),
        ("uv pip install x", "uv pip install"),
        ("python -m spacy download en", "python -m spacy download"),
        ("python train.py --pip-install no", None),
        ("echo pipinstall", None),
        ("# pip install torch", None),
        ("conda activate x && conda run python t.py", None),
        ("uv run train.py", None),
    ],
)
def test_RAIL_09_installations_are_found(text: str, found: str | None) -> None:
    assert find_install(text) == found


@each(
    ("text", "lines"),
    [
        ("python a.py; echo done", 1),
        (
            '#!/bin/bash\n. env/bin/activate\npython a.py 2>&1\n# it is over || not\ndate\necho "done at $(date)"\n',
            2,
        ),
        ("python a.py\r\nsleep 5\r\nprintf 'done\\n'\r\n", 1),
        ("python a.py; true", 0),
        ("python a.py", 0),
        ("echo begin; python a.py", 0),
        ("echo a; echo b", 0),
        ("python a.py; echo done > state", 0),
        ("python a.py; sh -c 'b; echo done'", 0),
        ("python a.py; cp a b", 0),
        ("python t.py; rc=$?; echo $rc", 0),
        ("python t.py | tee x; echo ${PIPESTATUS[0]}", 0),
        ("python t.py && echo done", 0),
        ("python t.py || python b.py; echo done", 0),
        ("python t.py & echo begun", 0),
        ("python - <<'PY'\nmain\nPY\necho done", 0),
        ("python t.py; exit 3; echo done", 0),
        ("run() {\n python a.py\n}\nrun; echo done", 0),
        ("for i in 1 2; do python a.py; done; echo done", 0),
        ("if python a.py; then b; fi; echo done", 0),
        ("cat names | while read name; do python a.py $name; done; echo done", 0),
        ("(python a.py); echo done", 0),
        ("trap 'exit 3' ERR; python a.py; echo done", 0),
        ("set -o pipefail -e; python a.py; echo done", 0),
        ("set -o nounset -o errexit; python a.py; echo done", 0),
        ("#!/usr/bin/env -S bash -e\npython a.py; echo done", 0),
        ("#!/bin/bash -eu\npython a.py; echo done", 0),
        ("", 0),
        ("\n" * 65536, 0),
    ],
)
def test_what_a_shell_prints_at_its_end_whatever_became_of_its_programs(text: str, lines: int) -> None:
    assert count_closing_lines(text) == lines
