"""What every transport does alike: one suite for `local` and `ssh`, on a real shell and a real sshd."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from holdfast.model.errors import CutOff, TooLate
from holdfast.model.place import Place
from holdfast.transport.calls import Calls
from holdfast.transport.open import open_transport
from tests.budget import examples
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.transport.base import Transport

pytestmark = pytest.mark.process

KILL_SELF = (
    'exec python3 -c "import os, signal, sys; n = int(sys.argv[1]); '
    'n == signal.SIGKILL or signal.signal(n, signal.SIG_DFL); os.kill(os.getpid(), n)" $1'
)
ECHO_ARGUMENTS = 'exec python3 -c "import base64, sys; sys.stdout.buffer.write(base64.b64decode(sys.argv[1]))" $1'


@pytest.fixture(params=["local", "ssh"])
def transport(request: pytest.FixtureRequest, isolated_environment: dict[str, str]) -> Iterator[Transport]:
    """A transport of each kind."""
    if request.param == "local":
        yield open_transport(Place("local", kind="local"))
        return
    made = request.getfixturevalue("connect")
    yield made("box")


def test_both_streams_and_the_exit_code_come_back(transport: Transport) -> None:
    done = transport.run("echo out $1 $2; printf err >&2; exit 7", ["a=b", "c:d@e+f/g.h"], limit_s=LIMIT_S)
    assert (done.code, done.out, done.err, done.cut) == (7, b"out a=b c:d@e+f/g.h\n", b"err", False)


def test_every_exit_code_is_exact(transport: Transport) -> None:
    codes = [0, 1, 2, 126, 127, 128, 130, 137, 254, 255]
    assert [transport.run("exit $1", [str(code)], limit_s=LIMIT_S).code for code in codes] == codes


@pytest.mark.slow
def test_an_end_by_signal_is_told_as_a_shell_does_and_the_shell_adds_no_word(transport: Transport) -> None:
    for signum in (1, 2, 9, 15):
        done = transport.run(KILL_SELF, [str(signum)], limit_s=LIMIT_S)
        assert (done.code, done.out, done.err) == (128 + signum, b"", b"")


def test_nothing_written_is_nothing(transport: Transport) -> None:
    for script in ("true", "exit 0", "exec true"):
        done = transport.run(script, limit_s=LIMIT_S)
        assert (done.code, done.out, done.err) == (0, b"", b"")


def test_ten_megabytes_of_any_bytes_go_both_ways_at_once(transport: Transport) -> None:
    data = os.urandom(10_000_000)
    done = transport.run("exec cat", stdin=data, limit_s=LIMIT_S, most_bytes=len(data))
    assert done.out == data
    assert not done.cut


def test_both_streams_are_served_at_once(transport: Transport) -> None:
    script = "head -c 1000000 /dev/zero >&2 & head -c 1000000 /dev/zero; wait; cat >&2"
    done = transport.run(script, stdin=b"end", limit_s=LIMIT_S)
    assert (len(done.out), len(done.err), done.err[-3:]) == (1_000_000, 1_000_003, b"end")


def test_standard_input_may_come_in_pieces(transport: Transport) -> None:
    pieces = (bytes([number]) * 1000 for number in range(256))
    done = transport.run("exec cat", stdin=pieces, limit_s=LIMIT_S)
    assert done.out == b"".join(bytes([number]) * 1000 for number in range(256))


def test_standard_input_that_is_not_read_stops_nothing(transport: Transport) -> None:
    assert transport.run("echo done", stdin=b"x" * 5_000_000, limit_s=LIMIT_S).out == b"done\n"


def test_standard_input_that_fails_leaves_nothing_behind(transport: Transport) -> None:
    def fail() -> Iterator[bytes]:
        yield b"some"
        raise OSError("the disk of the desk")

    with pytest.raises(OSError, match="the disk of the desk"):
        transport.run("exec cat", stdin=fail(), limit_s=LIMIT_S)


def test_without_input_a_reader_sees_its_end(transport: Transport) -> None:
    assert transport.run("cat; echo end", limit_s=LIMIT_S).out == b"end\n"


def test_what_is_too_much_is_dropped_and_told(transport: Transport) -> None:
    done = transport.run("head -c 3000000 /dev/zero; echo small >&2; exit 4", limit_s=LIMIT_S, most_bytes=1000)
    assert (done.code, done.out, done.err, done.cut) == (4, bytes(1000), b"small\n", True)


def test_a_limit_ends_the_call_and_says_that_the_effect_is_unknown(transport: Transport) -> None:
    with pytest.raises(TooLate, match=r"no answer within 0\.7 s") as caught:
        transport.run("echo begun; exec sleep 1000", limit_s=0.7)
    assert "not known" in caught.value.hint
    assert caught.value.exit_code == 69


@pytest.mark.requirement("XPORT-05")
@pytest.mark.gotcha("U12")
def test_XPORT_05_input_that_is_not_taken_any_more_ends_the_call(transport: Transport) -> None:
    """As when a receiver hangs in a file system, or is stopped, while its sshd answers."""
    assert isinstance(transport, Calls)
    transport.stall_s = 1.0

    def send_slowly() -> Iterator[bytes]:
        yield b"x" * 1000
        time.sleep(1.5)  # our own time to read the next piece is no stall
        yield from (b"x" * (1 << 16) for _ in range(10_000))

    with pytest.raises(TooLate, match=r"no answer within 1 s \(it takes no more of what is sent\)"):
        transport.run("exec sleep 6", stdin=send_slowly(), limit_s=LIMIT_S)
    assert transport.run("sleep 2; cat", stdin=b"read late", limit_s=LIMIT_S).out == b"read late"


def test_a_call_that_found_no_place_among_the_others_says_that_nothing_was_sent(transport: Transport) -> None:
    assert isinstance(transport, Calls)
    transport._slots = threading.BoundedSemaphore(1)
    with transport._slots, pytest.raises(TooLate, match="nothing was sent") as caught:
        transport.run("echo begun", limit_s=0.1)
    assert caught.value.hint == "ask again when one of them has ended"


def test_a_flood_cannot_outrun_the_limit(transport: Transport) -> None:
    with pytest.raises(TooLate):
        transport.run("exec yes", limit_s=1.0, most_bytes=1000)


def test_a_command_whose_shell_is_killed_is_cut_off(transport: Transport) -> None:
    with pytest.raises(CutOff):
        transport.run("echo some; kill -9 $$", limit_s=LIMIT_S)


def test_what_a_command_leaves_running_holds_up_no_answer(transport: Transport) -> None:
    done = transport.run("sleep 1.5 & echo started", limit_s=LIMIT_S)
    assert (done.code, done.out) == (0, b"started\n")


def test_output_that_holds_the_nonce_passes(transport: Transport) -> None:
    script = "ps -o args= -p $PPID; echo $0; echo $0 end now; printf %s $0"
    done = transport.run(script, limit_s=LIMIT_S)
    nonce = done.out.split()[-1]
    assert done.out.endswith(nonce + b"\n" + nonce + b" end now\n" + nonce)


AWKWARD = [
    "new\nline",
    "it's",
    'a "word"',
    "bang! !! !$",
    "back\\slash",
    "ünï → 火",
    "$HOME `id` $(id)",
    "",
    " ",
    "~",
    "{a,b}*",
]


@pytest.mark.requirement("B-16")
def test_arguments_of_any_kind_travel_as_one_word(transport: Transport) -> None:
    word = base64.b64encode(json.dumps(AWKWARD).encode()).decode()
    assert json.loads(transport.run(ECHO_ARGUMENTS, [word], limit_s=LIMIT_S).out) == AWKWARD


def test_what_some_login_shell_would_change_is_refused(transport: Transport) -> None:
    for script in ("echo 'a'", "echo a\\b", "echo !", "a\nb"):
        with pytest.raises(ValueError, match="not for every login shell"):
            transport.run(script, limit_s=1)
    for word in ("", "a b", "$x", "a;b", "~", "=ls", "a'"):
        with pytest.raises(ValueError, match="not for every login shell"):
            transport.run("true", [word], limit_s=1)
    with pytest.raises(ValueError, match="too long"):
        transport.run("true", ["x" * 100_000], limit_s=1)


@pytest.mark.slow
def test_calls_at_once_each_get_their_own_answer(transport: Transport) -> None:
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda n: transport.run("echo $1; exit $1", [str(n)], limit_s=LIMIT_S), range(24)))
    assert [(done.code, done.out) for done in answers] == [(n, b"%d\n" % n) for n in range(24)]


def test_300_calls_leave_no_descriptor(transport: Transport) -> None:
    transport.run("true", limit_s=LIMIT_S)
    before = os.listdir("/proc/self/fd")
    with ThreadPoolExecutor(6) as pool:
        codes = set(pool.map(lambda _: transport.run("true", limit_s=LIMIT_S).code, range(examples(300))))
    assert codes == {0}
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_following_hands_on_what_comes_and_answers_the_exit_code(transport: Transport) -> None:
    out, err = bytearray(), bytearray()
    read, write = os.pipe()
    os.write(write, b"typed")
    os.close(write)
    code = transport.follow("echo first; cat; echo no >&2; exit 5", out=out.extend, err=err.extend, stdin_fd=read)
    os.close(read)
    assert (code, bytes(out), bytes(err)) == (5, b"first\ntyped", b"no\n")


def test_following_ends_when_it_is_woken_and_the_command_loses_its_connection(
    transport: Transport, request: pytest.FixtureRequest
) -> None:
    wake_read, wake_write = os.pipe()
    asked: list[int] = []

    def woken() -> bool:
        os.read(wake_read, 100)
        asked.append(1)
        return len(asked) == 2

    def out(data: bytes) -> None:
        os.write(wake_write, b"x")

    script = "echo one; sleep 0.2; echo two; while echo more; do sleep 0.05; done"
    code = transport.follow(script, out=out, err=_refuse_output, wake_fd=wake_read, woken=woken)
    os.close(wake_read)
    os.close(wake_write)
    assert (code, len(asked)) == (-1, 2)
    if transport.name != "local":
        box = request.getfixturevalue("sshd")
        wait_until(lambda: "echo more" not in str(box.processes("box")), what="the end of the command there")


def test_a_failure_of_who_follows_ends_the_command(transport: Transport) -> None:
    def out(data: bytes) -> None:
        raise BrokenPipeError("nobody reads the desk's output")

    with pytest.raises(BrokenPipeError, match="nobody reads"):
        transport.follow("while echo more; do sleep 0.05; done", out=out, err=_refuse_output)


def test_calls_go_on_beside_one_that_is_followed(transport: Transport) -> None:
    wake_read, wake_write = os.pipe()
    begun = threading.Event()

    def follow() -> int:
        return transport.follow(
            "echo begun; exec sleep 1000", out=lambda _: begun.set(), err=_refuse_output, wake_fd=wake_read
        )

    with ThreadPoolExecutor(1) as pool:
        followed = pool.submit(follow)
        assert begun.wait(LIMIT_S)
        assert transport.run("echo beside", limit_s=LIMIT_S).out == b"beside\n"
        os.write(wake_write, b"x")
        assert followed.result() == -1
    os.close(wake_read)
    os.close(wake_write)


def _refuse_output(data: bytes) -> None:
    raise AssertionError(data)
