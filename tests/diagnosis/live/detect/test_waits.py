"""What a thread waits for, told from state letter, wait symbol and system call."""

from __future__ import annotations

import pytest

from holdfast.diagnosis.live.detect.waits import (
    Wait,
    classify_wait,
    epoll_descriptor,
    first_descriptor,
    has_timeout,
    name_call,
    poll_array,
)
from tests.each import each

pytestmark = [pytest.mark.pure, pytest.mark.requirement("DIAG-06")]

SYMBOLS = [
    ("S", "futex_wait_queue_me", Wait.FUTEX),
    ("S", "futex_wait_queue", Wait.FUTEX),
    ("S", "futex_do_wait", Wait.FUTEX),
    ("S", "pipe_wait_readable", Wait.PIPE),
    ("S", "anon_pipe_read", Wait.PIPE),
    ("S", "pipe_read", Wait.PIPE),
    ("S", "anon_pipe_write", Wait.PIPE),
    ("S", "do_sys_poll", Wait.POLL),
    ("S", "poll_schedule_timeout.constprop.0", Wait.POLL),
    ("S", "ep_poll", Wait.POLL),
    ("S", "do_wait", Wait.CHILD),
    ("D", "kernel_clone", Wait.VFORK),
    ("D", "_do_fork", Wait.VFORK),
    ("S", "hrtimer_nanosleep", Wait.SLEEP),
    ("S", "unix_stream_read_generic", Wait.SOCKET),
    ("S", "sk_wait_data", Wait.SOCKET),
    ("S", "inet_csk_accept", Wait.SOCKET),
    ("S", "request_wait_answer", Wait.FUSE),
    ("D", "request_wait_answer", Wait.FUSE),
    ("D", "nfs_wait_bit_killable", Wait.NFS),
    ("D", "rpc_wait_bit_killable", Wait.NFS),
    ("D", "io_schedule", Wait.STORAGE),
    ("D", "folio_wait_bit_common", Wait.STORAGE),
    ("D", "jbd2_log_wait_commit", Wait.STORAGE),
    ("D", "percpu_rwsem_wait", Wait.STORAGE),
    ("D", "nv_drm_something", Wait.DRIVER),
    ("D", "uvm_wait", Wait.DRIVER),
    ("D", "__refrigerator", Wait.FROZEN),
    ("S", "do_freezer_trap", Wait.FROZEN),
    ("D", "a_symbol_that_nobody_knows", Wait.STORAGE),
    ("S", "a_symbol_that_nobody_knows", Wait.OTHER),
    ("T", "do_signal_stop", Wait.STOPPED),
    ("t", "ptrace_stop", Wait.TRACED),
    ("Z", None, Wait.DEAD),
    ("R", None, Wait.RUNNING),
    ("S", None, Wait.UNKNOWN),
]


@each(("state", "wchan", "expected"), SYMBOLS)
def test_a_symbol_names_its_family_on_every_kernel(state: str, wchan: str | None, expected: Wait) -> None:
    assert classify_wait(state, wchan, None, machine="x86_64") is expected


CALLS = [
    ("x86_64", 202, Wait.FUTEX),
    ("aarch64", 98, Wait.FUTEX),
    ("x86_64", 45, Wait.SOCKET),
    ("aarch64", 207, Wait.SOCKET),
    ("x86_64", 61, Wait.CHILD),
    ("aarch64", 260, Wait.CHILD),
    ("x86_64", 230, Wait.SLEEP),
    ("aarch64", 115, Wait.SLEEP),
    ("x86_64", 7, Wait.POLL),
    ("aarch64", 73, Wait.POLL),
    ("riscv64", 98, Wait.OTHER),
]


@each(("machine", "number", "expected"), CALLS)
@each("wchan", [None, "wait_woken"])
def test_a_system_call_helps_where_the_symbol_does_not(
    machine: str, number: int, expected: Wait, wchan: str | None
) -> None:
    assert classify_wait("S", wchan, number, machine=machine) is expected


def test_the_first_argument_is_a_descriptor_only_of_calls_that_take_one() -> None:
    assert first_descriptor(0, (7, 0), machine="x86_64") == 7
    assert first_descriptor(63, (7, 0), machine="aarch64") == 7
    assert first_descriptor(202, (7, 0), machine="x86_64") is None
    assert first_descriptor(0, (1 << 40, 0), machine="x86_64") is None
    assert first_descriptor(None, (), machine="x86_64") is None
    assert epoll_descriptor(232, (5,), machine="x86_64") == 5
    assert epoll_descriptor(0, (5,), machine="x86_64") is None
    assert poll_array(7, (4096, 3), machine="x86_64") == (4096, 3)
    assert poll_array(22, (4096, 3), machine="aarch64") is None


def test_a_futex_wait_without_a_timeout_is_told_apart() -> None:
    assert has_timeout(202, (1, 0, 0, 0), machine="x86_64") is False
    assert has_timeout(202, (1, 0, 0, 4096), machine="x86_64") is True
    assert has_timeout(0, (1, 0, 0, 0), machine="x86_64") is None
    assert has_timeout(202, (1,), machine="x86_64") is None
    assert has_timeout(98, (1, 0, 0, 0), machine="riscv64") is None


def test_calls_have_names_for_people() -> None:
    assert name_call(202, machine="x86_64") == "futex"
    assert name_call(98, machine="aarch64") == "futex"
    assert name_call(9999, machine="x86_64") == "system call 9999"
    assert not name_call(None)
