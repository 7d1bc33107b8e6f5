"""What ``places.toml`` may say, and the words for what it may not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.desk.places.schema import build_place, check_name, parse_places
from holdfast.desk.toml import Node, parse_toml
from holdfast.model.errors import UsageError
from holdfast.model.place import Place, Rent
from holdfast.transfer.contact import check_path
from tests.each import each

pytestmark = pytest.mark.pure


def read(text: str) -> dict[str, Place]:
    return parse_places(parse_toml(text, "places.toml"))


def refuse(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        read(text)
    return str(caught.value)


def test_a_place_says_as_much_as_is_wanted() -> None:
    text = """
[gpu1]
host = "me@gpu1.lab"
port = 2222
root = "~/runs/"
python = "/opt/conda/bin/python"
setup = ["module load cuda", "export A='b c'"]
env_from = "login"

[here]
root = "/data/runs"

[alias]
host = "alias"
setup = '''
  . ~/env.sh

module load x'''
"""
    assert read(text) == {
        "gpu1": Place(
            "gpu1",
            host="me@gpu1.lab",
            port=2222,
            root="~/runs",
            python="/opt/conda/bin/python",
            setup=("module load cuda", "export A='b c'"),
            env_from="login",
        ),
        "here": Place("here", kind="local", root="/data/runs"),
        "alias": Place("alias", host="alias", setup=("  . ~/env.sh", "module load x")),
    }


@each(
    "host",
    ["gpu1", "me@gpu1.lab", "10.0.0.1", "root@fe80::1%eth0", "a.b@corp@jump-1", "me@::1"],
)
def test_what_ssh_takes_is_taken(host: str) -> None:
    assert read(f'[a]\nhost = "{host}"')["a"].host == host


@each(
    "text, words",
    [
        ('[a]\nhost = "x"\nhots = "y"', "places.toml:3: a.hots: unknown key; did you mean host?"),
        ('[a]\nhost = "x"\nzzz = 1', "places.toml:3: a.zzz: unknown key; there are kind, host"),
        ('[a]\nhost = "x"\n[a.slrum]\nx = 1', "places.toml:3: a.slrum: unknown key; did you mean slurm?"),
        ('kind = "ssh"', "places.toml:1: kind: belongs to no place; write it below [NAME]"),
        ('[[a]]\nhost = "x"', "places.toml:1: a: belongs to no place"),
        ('[local]\nroot = "/x"', "places.toml:1: local is this machine"),
        ('[GPU1]\nhost = "x"', "places.toml:1: 'GPU1' is no name for a place: small letters, digits and dashes"),
        ('["../x"]\nhost = "x"', "places.toml:1: '../x' is no name for a place"),
        ('["a:b"]\nhost = "x"', "places.toml:1: 'a:b' is no name for a place"),
        ('["-a"]\nhost = "x"', "'-a' is no name"),
        (f'["{"a" * 33}"]\nhost = "x"', "is no name for a place"),
        ('[a]\nkind = "kubernetes"\nhost = "x"', "places.toml:2: a.kind: places of kind kubernetes are not there yet"),
        ('[a]\nkind = "kubernetes"\nhost = "x"', "are not there yet; there are ssh, local, slurm"),
        ('[a]\nkind = "slurm"\nport = 22', "a port belongs to a host"),
        ('[a]\nhost = "x"\nslurm = {qos = "high"}', "options of sbatch are for places of kind slurm"),
        ('[a]\nkind = "slurm"\nslurm = {array = "1-3"}', "a.slurm: slurm: --array is holdfast's own to say"),
        ('[a]\nkind = "slurm"\nslurm = "high"', "expected a table of sbatch's options"),
        (
            '[a]\nkind = "shh"\nhost = "x"',
            "places.toml:2: a.kind: 'shh' is none of ssh, local, slurm; did you mean ssh?",
        ),
        ('[a]\nkind = "ssh"', "places.toml:1: a: a place of kind ssh needs host"),
        (
            '[a]\nkind = "local"\nhost = "x"',
            "places.toml:1: a: a place of kind local is this machine and takes no host",
        ),
        ("[a]\nport = 22", "takes no port"),
        ('[a]\nhost = "x"\nport = 0', "places.toml:3: a.port: expected a port from 1 to 65535, found 0"),
        ('[a]\nhost = "x"\nport = true', "expected a port from 1 to 65535, found True"),
        ('[a]\nhost = "x"\nport = "22"', "expected a port from 1 to 65535, found 22"),
        (
            '[a]\nhost = "x:2222"',
            "places.toml:2: a.host: 'x:2222': ssh takes the port apart from the host: x, and port = 2222",
        ),
        ('[a]\nhost = "me@a:22"', "ssh takes the port apart from the host: me@a, and port = 22"),
        ('[a]\nhost = "-oProxyCommand=x"', "a.host: '-oProxyCommand=x' is not what ssh takes"),
        ('[a]\nhost = "me@-x"', "is not what ssh takes"),
        ('[a]\nhost = "x;id"', "is not what ssh takes"),
        ('[a]\nhost = "$(id)@x"', "is not what ssh takes"),
        ('[a]\nhost = "x\\ny"', "is not what ssh takes"),
        ('[a]\nhost = ""', "is not what ssh takes"),
        ('[a]\nhost = "x\\n"', "is not what ssh takes"),
        ("[a]\nhost = 3", "a.host: expected text in quotes, found 3"),
        ("[a]\nhost = []", "a.host: expected text in quotes, found a list"),
        (
            '[a]\nhost = "x"\nroot = "runs"',
            "places.toml:3: a.root: 'runs' is neither absolute nor below the home there",
        ),
        ('[a]\nhost = "x"\nroot = "~other/x"', "may have letters, digits"),
        ('[a]\nhost = "x"\nroot = "/a b"', "may have letters, digits"),
        ('[a]\nhost = "x"\nroot = "$HOME/x"', "may have letters, digits"),
        ('[a]\nhost = "x"\nroot = "/a/../b"', "write it without .."),
        ('[a]\nhost = "x"\npython = "bin/python"', "a.python: 'bin/python' is neither absolute nor below"),
        ('[a]\nhost = "x"\npython = "python3.11"', "a.python: 'python3.11' is neither absolute nor below"),
        ('[a]\nhost = "x"\npython = "python -x"', "may have letters, digits"),
        ('[a]\nhost = "x"\nsetup = 3', "a.setup: expected text in quotes, found 3"),
        ('[a]\nhost = "x"\nsetup = ["a", 3]', "a.setup: expected text in quotes, found 3"),
        ('[a]\nhost = "x"\nsetup = "a\\u0000b"', "a zero byte"),
        (f'[a]\nhost = "x"\nsetup = "{"x" * 40_000}"', "more than 32000 characters"),
        ('[a]\nhost = "x"\nenv_from = "shell"', "a.env_from: 'shell' is none of login, none"),
    ],
)
def test_what_is_wrong_is_named_with_line_and_key(text: str, words: str) -> None:
    assert words in refuse(text)


@given(
    key=st.sampled_from(["root", "python"]),
    beginning=st.sampled_from(["", "/", "~/", "a"]),
    rest=st.text("ab1./~=@:-+_ \n", max_size=8),
)
def test_every_path_that_is_taken_can_be_sent(key: str, beginning: str, rest: str) -> None:
    try:
        place = build_place("a", {"host": Node("x", "a"), key: Node(beginning + rest, "a")}, "a")
    except UsageError:
        return
    path = getattr(place, key)
    assert check_path(place, key, path) == path


def test_all_that_is_wrong_is_said_at_once() -> None:
    said = refuse('[a]\nhost = "x"\nrot = "/x"\n[b]\nport = 70000\n[C]\n')
    assert [line.split(": ")[0] for line in said.splitlines()] == [f"places.toml:{n}" for n in (3, 5, 4, 6)]


def test_a_name_that_would_do_is_offered() -> None:
    assert check_name("My_Box.lab").endswith("; my-box-lab would do")
    assert check_name("gpu1") == ""


@pytest.mark.requirement("PROF-15")
def test_a_place_names_its_profile_and_its_rent() -> None:
    text = """
[gpu1]
host = "gpu1"
profile = "runpod"

[gpu1.rent]
since = 2026-11-23T08:00:00Z
rate = 2
currency = "USD"
cap = 50.5
region = "EU-1"
also = ["volume 100 GB: 7 USD a month", "image of the box: 3 USD a month; made by the console"]
status_command = ["runpodctl", "get", "pod", "abc"]
status_url = "https://status.example/abc"
"""
    place = read(text)["gpu1"]
    assert (place.profile, place.rent) == (
        "runpod",
        Rent(
            since="2026-11-23T08:00:00.000Z",
            rate=2.0,
            currency="USD",
            cap=50.5,
            region="EU-1",
            also=("volume 100 GB: 7 USD a month", "image of the box: 3 USD a month; made by the console"),
            status_command=("runpodctl", "get", "pod", "abc"),
            status_url="https://status.example/abc",
        ),
    )


@each(
    "key, value, words",
    [
        ("rates", "2", "places.toml:4: gpu1.rent.rates: unknown key; did you mean rate?"),
        ("rate", "-1", "places.toml:4: gpu1.rent.rate: expected an amount that is not negative, found -1"),
        ("since", '"soon"', "places.toml:4: gpu1.rent.since: since: 'soon' is no time"),
        ("since", '"+2h"', "'+2h' is no moment; write it like"),
        ("currency", '"dollars"', "is no currency; write its three letters"),
        ("also", '"x"', "expected a list of texts"),
        ("status_command", "[]", "expected the words of a command"),
        ("status_command", '["p", "--token", "ghp_a1B2a1B2a1B2a1B2a1B2a1B2a1B2a1B2a1B2"]', "a secret"),
        ("status_url", '"https://me:secret@host/x"', "looks like a secret"),
        ("status_url", '"ftp://host"', "is no address"),
    ],
)
def test_a_wrong_rent_is_refused_with_line_and_key(key: str, value: str, words: str) -> None:
    assert words in refuse(f'[gpu1]\nhost = "a"\n[gpu1.rent]\n{key} = {value}\n')


def test_a_wrong_profile_or_rent_is_refused() -> None:
    assert "is no name of a profile" in refuse('[a]\nprofile = "Run Pod"\n')
    assert "expected a table, found 5" in refuse("[a]\nrent = 5\n")
