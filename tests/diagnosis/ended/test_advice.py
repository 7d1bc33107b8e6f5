"""What a verdict tells a person to do, of ends whose advice once led astray: the words, by whole outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast.core.run.lifecycle import LINE_COUNTS
from holdfast.diagnosis.ended.evidence import UNREAD
from holdfast.diagnosis.ended.judge import judge_evidence
from holdfast.diagnosis.evidence import KernelEvent, KernelKind, Reading
from holdfast.diagnosis.logs.attribute import judge_log
from holdfast.diagnosis.logs.scan import read_log
from holdfast.model.record import replace
from holdfast.model.run import Outcome, Refusal
from holdfast.model.verdict import Confidence, FailureClass, Verdict
from tests.each import each

from .making import GIB, RUN_ID, disk, ended, evidence, log_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.files, pytest.mark.requirement("FAIL-01")]

TRACE = 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in <module>\n    main()\n'
ABORTED = "step 3\nterminate called after throwing an instance of '{}'\n  what():  {}\n"
UNREADY = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
    "NumCudaDevices() that might have already set an error? Error 802: system not yet initialized\n"
)
GPU_MEMORY, ENVIRONMENT, BUG = FailureClass.GPU_OUT_OF_MEMORY, FailureClass.ENVIRONMENT, FailureClass.BUG
POSSIBLE, LIKELY = Confidence.POSSIBLE, Confidence.LIKELY


def judge(root: Path, output: str, code: int | None = 1, signal: int | None = None, **known: Any) -> Verdict:
    path = root / "output.log"
    path.write_text(output, encoding="utf-8")
    log = read_log(str(path))
    end = ended(None if signal else code, signal)
    found = judge_evidence(replace(evidence(end), log=log, words=judge_log(log), **known))[0]
    assert found is not None
    return found


@each("words", ["RuntimeError: can't start new thread", "bash: fork: retry: Resource temporarily unavailable"])
def test_a_limit_of_tasks_that_the_job_set_is_raised_by_a_restart(tmp_path: Path, words: str) -> None:
    told = judge(tmp_path, f"{words}\n", tasks_limit=10)
    assert (told.kind, told.confidence) == (FailureClass.RESOURCE_LIMIT, LIKELY)
    assert "raise limits.tasks, which counts both (now 10; " in told.action
    assert told.action.endswith(f"holdfast restart {RUN_ID} --limit-tasks 20")
    free = judge(tmp_path, f"{words}\n")
    assert "limits.tasks where the job has one, else `ulimit -u`" in free.action
    assert "--limit-tasks" not in free.action


@each(
    ("known", "told"),
    [
        ({}, "(how many it needs is not known; try 65536): {} --limit-open-files 65536"),
        (
            {"rlimits": {"nofile": 1024, "nofile_hard": 1048576}},
            "(now 1024; how many it needs is not known; try 65536): {} ",
        ),
        ({"rlimits": {"nofile": 1024, "nofile_hard": 4096}}, "try 4096): {} --limit-open-files 4096"),
        ({"rlimits": {"nofile": 90000, "nofile_hard": None}}, "try 180000): {} --limit-open-files 180000"),
        ({"rlimits": {"nofile": 9, "nofile_hard": 9}}, "9 is the hard limit, which only an administrator raises"),
        (
            {"files_limit": 64, "rlimits": {"nofile": 9999, "nofile_hard": 9999}},
            "(now 64; how many it needs is not known; try 9999)",
        ),
    ],
)
def test_the_limit_of_open_files_is_raised_by_a_restart(tmp_path: Path, known: dict[str, Any], told: str) -> None:
    for words in (
        f"{TRACE}OSError: [Errno 24] Too many open files: '/data/x'\n",
        f"{TRACE}RuntimeError: Too many open files. Communication with the workers is no longer possible.\n",
        "bash: pipe error: Too many open files\n",
    ):
        verdict = judge(tmp_path, words, **known)
        assert verdict.kind is FailureClass.RESOURCE_LIMIT
        assert told.format(f"holdfast restart {RUN_ID}") in verdict.action
        assert verdict.action.startswith("have fewer open at once (fewer workers), or raise limits.open_files")


TOO_LARGE = f"{TRACE}OSError: [Errno 27] File too large\n"


@each(
    ("words", "signal", "known", "told"),
    [
        (
            TOO_LARGE,
            None,
            {"rlimits": {"fsize": 4 * 1024**2}},
            "raise the file-size limit (now 4 MiB): `ulimit -f unlimited` ",
        ),
        (
            "step 1\n",
            25,
            {"rlimits": {"fsize": GIB}},
            "raise the file-size limit (now 1 GiB): `ulimit -f unlimited` in",
        ),
        ("step 1\n", 25, {}, "raise the file-size limit: `ulimit -f unlimited` in a shell at its box, and in the same"),
        ("step 1\n", 24, {"rlimits": {"cpu": 60}}, "raise the CPU-time limit (now 60 s): `ulimit -t unlimited` in a"),
        ("CPU time limit exceeded (core dumped)\n", None, {}, "raise the CPU-time limit: `ulimit -t unlimited`"),
        (
            f"{TRACE}MemoryError\n",
            None,
            {"rlimits": {"as": GIB}},
            "raise the address-space limit (now 1 GiB): `ulimit -v",
        ),
        (
            TOO_LARGE,
            None,
            {"rlimits": {"fsize": None}},
            "see what sets the file-size limit (ulimit or setrlimit in the job",
        ),
        ("step 1\n", 24, {"rlimits": {"cpu": None}}, "see what sets the CPU-time limit (ulimit or setrlimit in the"),
    ],
)
def test_a_limit_of_the_shell_is_raised_in_the_shell_that_restarts(
    tmp_path: Path, words: str, signal: int | None, known: dict[str, Any], told: str
) -> None:
    verdict = judge(tmp_path, words, signal=signal, **known)
    assert verdict.kind is FailureClass.RESOURCE_LIMIT
    assert verdict.action.startswith(told)
    assert f": holdfast restart {RUN_ID}" in verdict.action
    assert "job file" not in verdict.action


@each(
    ("words", "kind", "sure", "action"),
    [
        ("CUDA error: all CUDA-capable devices are busy or unavailable", ENVIRONMENT, LIKELY, "compute mode"),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", ENVIRONMENT, LIKELY, "compute mode"),
        ("CUDA error: unknown error", ENVIRONMENT, POSSIBLE, "a Xid of this card"),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `x`", GPU_MEMORY, POSSIBLE, "memory was full"),
        ("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", GPU_MEMORY, POSSIBLE, "an index or label"),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `x`", BUG, POSSIBLE, "CUDA_LAUNCH_BLOCKING=1"),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", BUG, POSSIBLE, "CUDA_LAUNCH_BLOCKING=1"),
        (UNREADY.removeprefix("RuntimeError: ").strip(), ENVIRONMENT, LIKELY, "nvidia-fabricmanager"),
    ],
)
def test_trouble_of_a_card_or_its_driver_is_not_called_the_jobs_own(
    tmp_path: Path, words: str, kind: FailureClass, sure: Confidence, action: str
) -> None:
    told = judge(tmp_path, f"{TRACE}RuntimeError: {words}\n")
    assert (told.kind, told.confidence) == (kind, sure)
    assert action in told.action


@each(
    ("words", "kind"),
    [
        ("CUDA error: device-side assert triggered", BUG),
        ("CUDA error: an illegal memory access was encountered", BUG),
        ("CUDA error: out of memory", GPU_MEMORY),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", GPU_MEMORY),
        ("CUDA error: unknown error", ENVIRONMENT),
    ],
)
def test_a_cpp_exception_that_nobody_caught_is_judged_by_its_text(
    tmp_path: Path, words: str, kind: FailureClass
) -> None:
    text = ABORTED.format("c10::Error", words)
    assert judge(tmp_path, text, signal=6).kind is kind
    same = judge(tmp_path, f"{TRACE}RuntimeError: {words}\n")
    assert judge(tmp_path, text, signal=6).action == same.action


def test_an_abort_whose_text_no_rule_knows_stays_a_crash(tmp_path: Path) -> None:
    told = judge(tmp_path, ABORTED.format("std::out_of_range", "vector::_M_range_check: __n (which is 9)"), signal=6)
    assert told.kind is FailureClass.NATIVE_CRASH


def test_a_cpp_program_without_memory_is_told_what_a_python_one_is(tmp_path: Path) -> None:
    native = judge(tmp_path, ABORTED.format("std::bad_alloc", "std::bad_alloc"), signal=6, peak_bytes=GIB)
    python = judge(tmp_path, f"{TRACE}MemoryError\n", peak_bytes=GIB)
    assert native.kind is FailureClass.OUT_OF_MEMORY
    assert native.action == python.action
    assert "limit that it met" not in native.action
    assert f"holdfast restart {RUN_ID}" in native.action


FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "10.00 GiB of "
    "which 100.00 MiB is free. {}Including non-PyTorch memory, this process has 500.00 MiB memory in use. Of the "
    "allocated memory 100.00 MiB is allocated by PyTorch, and 3.00 MiB is reserved by PyTorch but unallocated.\n"
)


def test_who_held_a_card_by_the_words_of_torch_is_told_and_first_of_all_where_it_was_most(tmp_path: Path) -> None:
    most = judge(tmp_path, TRACE + FULL.format("Process 12345 has 9.30 GiB memory in use. "))
    assert "process 12345 held 9.30 GiB of the card" in [clue.text for clue in most.evidence_for]
    assert most.action.startswith("first see whose process 12345 is, which held 9.30 GiB of the card's 10.00 GiB: ")
    both = "Process 7 has 1.00 GiB memory in use. Process 8 has 2.00 GiB memory in use. "
    little = judge(tmp_path, TRACE + FULL.format(both))
    told = {clue.text for clue in little.evidence_for}
    assert {"process 7 held 1.00 GiB of the card", "process 8 held 2.00 GiB of the card"} <= told
    assert little.action.startswith("see who else holds memory on the card")
    alone = judge(tmp_path, TRACE + FULL.format(""))
    assert not [clue for clue in alone.evidence_for if clue.text.startswith("process ")]


def test_a_full_card_is_advised_by_what_the_run_had(tmp_path: Path) -> None:
    leased = judge(tmp_path, TRACE + FULL.format(""), has_cards=True)
    assert "expandable segments" in leased.action
    assert "--gpus" not in leased.action
    free = judge(tmp_path, TRACE + FULL.format(""), has_cards=False, expandable=True)
    assert "expandable segments" not in free.action
    assert free.action.endswith("; with --gpus 1 it would have had a card for itself")


@each(
    ("words", "kind"),
    [
        ("FloatingPointError: Loss became infinite or NaN at iteration=2313!", FailureClass.DIVERGED),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", FailureClass.HARDWARE),
        ("it stopped", FailureClass.STORAGE_FAULT),
    ],
)
def test_no_remedy_speaks_of_a_checkpoint_that_is_not_there(tmp_path: Path, words: str, kind: FailureClass) -> None:
    broken = (disk(read_only=True, was_read_only=kind is not FailureClass.STORAGE_FAULT),)
    told = judge(tmp_path, f"{words}\n", checkpoint=False, disks=broken)
    assert told.kind is kind
    assert "begin" in told.action
    assert ": no checkpoint is known" in told.action
    kept = judge(tmp_path, f"{words}\n", checkpoint=True, disks=broken)
    assert "no checkpoint" not in kept.action
    assert "checkpoint" in kept.action


FLOW = "while parsing a flow sequence"
FLOW_FURTHER = (
    '  in "c.yaml", line 3, column 5\n'
    "expected ',' or ']', but got '<stream end>'\n"
    '  in "c.yaml", line 4, column 1\n'
)
FLOW_SAID = " ".join(FLOW_FURTHER.split())


@each(
    ("first", "further", "cause"),
    [
        (
            "RuntimeError: Error(s) in loading state_dict for Net:",
            '\tMissing key(s) in state_dict: "a.weight". \n\tsize mismatch for fc.weight: copying a param\n',
            'Net: Missing key(s) in state_dict: "a.weight". size mismatch for fc.weight: copying a param',
        ),
        (
            "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. (Request ID: Root=1-67)",
            "\nRepository Not Found for url: https://huggingface.co/nobody/none/resolve/main/config.json.\n",
            "(Request ID: Root=1-67) Repository Not Found for url: https://huggingface.co/nobody/none/resolve/main/conf",
        ),
        ("LookupError:", "**********\n  Resource punkt not found.\n", "LookupError: Resource punkt not found."),
        ("ValueError: bad shape", "  of the batch\n", "ValueError: bad shape"),
        (f"yaml.parser.ParserError: {FLOW}", f"{FLOW_FURTHER}rm: no such file\n", f"ParserError: {FLOW} {FLOW_SAID}"),
        (
            "yaml.scanner.ScannerError: while scanning a simple key",
            '  in "c.yaml", line 2, column 1\ncould not find expected \':\'\n  in "c.yaml", line 3, column 1\n',
            "column 1 could not find expected ':' in \"c.yaml\", line 3",
        ),
        (
            "yaml.scanner.ScannerError: mapping values are not allowed here",
            '  in "c.yaml", line 2, column 10\n',
            'not allowed here in "c.yaml", line 2, column 10',
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 2 validation errors for Config",
            "lr\n  Input should be a valid number [type=float_parsing]\n    For further information\nsteps\n  None\n",
            "for Config lr Input should be a valid number [type=float_parsing] For further information",
        ),
    ],
)
def test_a_first_line_that_says_little_takes_the_next_lines_of_its_text(
    tmp_path: Path, first: str, further: str, cause: str
) -> None:
    told = judge(tmp_path, f"{TRACE}{first}\n{further}")
    assert cause in told.cause
    assert "rm: no such file" not in told.cause
    assert told.kind is BUG or "yaml" not in first
    assert len(judge(tmp_path, f"{TRACE}{first}\n\t{'x' * 9000}\n").cause) < 400


URL = "https://huggingface.co/acme/Large-8B"
GATED = (
    f"huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: 1-67)\n\nCannot access gated {URL}/x\n",
    f"OSError: You are trying to access a gated repo.\nMake sure to have access to it at {URL}.\n401 Client Error.\n",
)


@each("words", GATED)
def test_a_gated_model_is_named_with_where_to_ask_for_it_and_how_a_job_gets_a_token(tmp_path: Path, words: str) -> None:
    told = judge(tmp_path, TRACE + words)
    assert told.kind is ENVIRONMENT
    assert told.action.startswith(
        "ask for access at https://huggingface.co/acme/Large-8B, with the account whose token"
    )
    assert "holdfast secret push PLACE HF_TOKEN" in told.action
    assert " --secret HF_TOKEN " in told.action


def test_a_text_that_a_program_exits_with_is_the_cause(tmp_path: Path) -> None:
    told = judge(tmp_path, "reading\nno config given: set CONFIG\n")
    assert (told.kind, told.confidence, told.cause) == (BUG, POSSIBLE, "no config given: set CONFIG")


def test_a_crash_names_the_line_of_the_job_that_called_it(tmp_path: Path) -> None:
    text = (
        "Fatal Python error: Segmentation fault\n\nThread 0x00007f01 (most recent call first):\n"
        '  File "/w/other.py", line 8 in wait\n\nCurrent thread 0x00007f02 (most recent call first):\n'
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n'
        '  File "/w/segv.py", line 3 in <module>\n'
    )
    told = judge(tmp_path, text, signal=11)
    assert told.kind is FailureClass.NATIVE_CRASH
    assert "it was called from /w/segv.py, line 3" in [clue.text for clue in told.evidence_for]
    assert told.action.endswith("; the Python line that called it is /w/segv.py, line 3")


@each(
    "before",
    [
        "Timeout (0:00:10)!\nThread 0x00007f01 (most recent call first):\n",
        "Current thread 0x00007f01 (most recent call first):\n",
        "Fatal Python error: Segmentation fault\n\nThread 0x00007f01 (most recent call first):\n",
    ],
)
def test_stacks_that_are_not_of_the_thread_that_crashed_name_no_place(tmp_path: Path, before: str) -> None:
    told = judge(tmp_path, f'{before}  File "/w/wait.py", line 8 in wait\nstep 3\n', signal=11)
    assert told.kind is FailureClass.NATIVE_CRASH
    assert "wait.py" not in f"{told.action} {told.evidence_for}"


def test_a_loader_whose_worker_was_gone_leads_to_what_ends_workers(tmp_path: Path) -> None:
    told = judge(tmp_path, f"{TRACE}RuntimeError: DataLoader worker (pid(s) 3123) exited unexpectedly\n")
    assert (told.kind, told.confidence) == (FailureClass.KILLED, POSSIBLE)
    assert "/dev/shm" in told.action
    assert "num_workers=0" in told.action


WORKER = "RuntimeError: DataLoader worker (pid 3123) is killed by signal: Killed."
CHAINED = (
    f"{TRACE}{WORKER} \n\nThe above exception was the direct cause of the following exception:\n\n"
    f"{TRACE}RuntimeError: DataLoader worker (pid(s) 3123) exited unexpectedly\n"
)


@pytest.mark.requirement("FAIL-14")
@each("output", [f"step 1\n{TRACE}{WORKER} \n", CHAINED])
def test_FAIL_14_a_worker_that_sigkill_ended_is_killed_where_no_counter_moved(tmp_path: Path, output: str) -> None:
    told = judge(tmp_path, output, peak_bytes=GIB)
    assert (told.kind, told.confidence, told.also) == (FailureClass.KILLED, LIKELY, ())
    assert told.action.startswith("find out who sent SIGKILL to its worker (pid 3123): another person")
    against = [clue.text for clue in told.evidence_against]
    assert "not out_of_memory: the OOM counter of its control group did not move" in against
    assert not [text for text in against if "traceback" in text]
    unread = judge(tmp_path, output, own_kills=UNREAD, host_kills=Reading(0))
    assert (unread.kind, unread.confidence) == (FailureClass.KILLED, LIKELY)
    assert "/proc/vmstat" in {clue.source for clue in unread.evidence_for}


@pytest.mark.requirement("FAIL-14")
def test_FAIL_14_a_worker_that_may_have_been_killed_for_memory_says_so_and_how_to_need_less(tmp_path: Path) -> None:
    told = judge(tmp_path, f"step 1\n{TRACE}{WORKER} \n", own_kills=UNREAD, host_kills=UNREAD)
    assert (told.kind, told.confidence) == (FailureClass.OUT_OF_MEMORY, POSSIBLE)
    assert told.action.startswith("use fewer data-loader workers")
    counted = judge(tmp_path, f"step 1\n{TRACE}{WORKER} \n", own_kills=Reading(1))
    assert (counted.kind, counted.confidence) == (FailureClass.OUT_OF_MEMORY, Confidence.CERTAIN)
    pool = "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly"
    unread = judge(tmp_path, f"step 1\n{TRACE}{pool}\n", own_kills=UNREAD, host_kills=UNREAD)
    assert unread.kind is FailureClass.OUT_OF_MEMORY
    full = judge(tmp_path, f"step 1\n{TRACE}{pool}\n", limit_bytes=GIB, peak_bytes=GIB)
    assert full.kind is FailureClass.OUT_OF_MEMORY
    lost = judge(tmp_path, f"step 1\n{TRACE}{pool}\n")
    assert (lost.kind, lost.confidence, lost.also) == (FailureClass.KILLED, POSSIBLE, ())
    assert lost.action.startswith("see what the worker itself said before its last line: the kernel killed nothing")
    assert "refused" not in lost.action
    assert not [clue for clue in lost.evidence_against if "traceback" in clue.text]


def test_a_worker_that_was_killed_before_is_not_the_end_by_something_else(tmp_path: Path) -> None:
    told = judge(tmp_path, f"{TRACE}{WORKER} \nbegin again with fewer workers\nstep 2\n{TRACE}KeyError: 'lr'\n")
    assert (told.kind, told.cause) == (BUG, "KeyError: 'lr'")
    asked = judge(tmp_path, f"step 1\n{TRACE}{WORKER} \n", signal=9)
    assert asked.kind is FailureClass.KILLED


def test_the_supervisors_log_is_named_only_where_it_says_something(tmp_path: Path) -> None:
    told = judge(tmp_path, "", code=3)
    assert told.kind is FailureClass.UNKNOWN
    assert f"supervisor.log (holdfast logs --supervisor {RUN_ID})" in told.action
    assert "supervisor" not in judge(tmp_path, "", code=3, silent_supervisor=True).action


def test_a_kill_that_took_holdfasts_own_process_too_says_so() -> None:
    end = ended(None, 9)
    assert end.status is not None
    for source, gone in (("keeper", False), ("namespace", True), ("pidfd", True)):
        seen = evidence(replace(end, status=replace(end.status, source=source)))
        found = judge_evidence(seen)[0]
        assert found is not None
        assert found.kind is FailureClass.KILLED
        assert gone is any("own process that kept the job was killed" in clue.text for clue in found.evidence_for)


def test_a_run_that_died_in_line_says_that_it_never_ran_and_what_leaves_the_line_out() -> None:
    words = "the total limit of 10.0 s passed while waiting for cards: card 0: run a of anna"
    refusal = Refusal("timed_out", 124, words, LINE_COUNTS)
    end = ended(None, None, refusal=refusal, started_at=None, outcome=Outcome.TIMED_OUT)
    found = judge_evidence(evidence(end))[0]
    assert found is not None
    assert (found.kind, found.cause) == (FailureClass.TIMED_OUT, f"it never ran: {words}")
    assert "--timeout-run" in found.action


OF_A_FILE, OF_A_DISK = "a file that it reads is damaged or incomplete: find it", "stop writing to the disk that failed,"
IN_A_WORKER = (
    f"{TRACE}ValueError: Caught ValueError in DataLoader worker process 0.\nOriginal {TRACE}"
    "ValueError: corrupt image: img_037.png\n"
)


@each(
    ("output", "told"),
    [
        (f"{TRACE}ValueError: corrupt image: img_037.png\n", OF_A_FILE),
        (IN_A_WORKER, OF_A_FILE),
        (f"{TRACE}RuntimeError: checkpoint is corrupt\n", OF_A_FILE),
        (f"{TRACE}OSError: image file is truncated (3 bytes not processed)\n", OF_A_FILE),
        (f"{TRACE}PIL.UnidentifiedImageError: cannot identify image file 'a.png'\n", OF_A_FILE),
        (f"{TRACE}tensorflow.errors.DataLossError: corrupted record at 12\n", OF_A_FILE),
        (f"{TRACE}sqlite3.DatabaseError: database disk image is malformed\n", OF_A_FILE),
        (f"{TRACE}ValueError: /data/disk/a.png is no image: file is empty\n", OF_A_FILE),
        ("error: archive train.tar is corrupt\n", OF_A_FILE),
        (f"{TRACE}RuntimeError: the disk is damaged\n", OF_A_DISK),
        (f"{TRACE}RuntimeError: the file system of /data is corrupted\n", OF_A_DISK),
        (
            f"cp: error reading 'a': Input/output error\n{TRACE}RuntimeError: checkpoint is corrupt\n",
            "the disk or its server failed to read or write",
        ),
    ],
)
def test_data_that_are_damaged_are_no_failing_disk(tmp_path: Path, output: str, told: str) -> None:
    verdict = judge(tmp_path, output)
    assert verdict.kind is FailureClass.STORAGE_FAULT
    assert verdict.action.startswith(told)


def test_data_that_are_damaged_on_a_disk_of_which_the_kernel_tells_are_the_disks_fault(tmp_path: Path) -> None:
    output = f"{TRACE}RuntimeError: checkpoint is corrupt\n"
    event = KernelEvent(KernelKind.IO_ERROR, 60.0, "I/O error, dev sda, sector 8", values={"device": "sda"})
    own = disk("/data/run", devices=("sda",))
    assert judge(tmp_path, output, kernel=log_of(event), disks=(own,)).action.startswith("stop writing to /data/run,")
    turned = disk("/data/run", read_only=True, was_read_only=False)
    assert judge(tmp_path, output, disks=(turned,)).action.startswith("stop writing to /data/run,")


ALONE, RANKS = "see that what it spoke to or waited for", "look at the rank that failed first"


@each(
    ("output", "known", "told"),
    [
        (f"{TRACE}ConnectionError: Connection reset by peer\n", {}, ALONE),
        (f"{TRACE}ConnectionResetError: [Errno 104] Connection reset by peer\n", {}, ALONE),
        (f"{TRACE}TimeoutError\n", {}, ALONE),
        (f"{TRACE}ConnectionRefusedError: [Errno 111] Connection refused\n", {}, ALONE),
        (f"lora rank: r\n{TRACE}BrokenPipeError: [Errno 32] Broken pipe\n", {}, ALONE),
        (f"{TRACE}TimeoutError\n", {"ranks": True}, RANKS),
        ("[rank1]: " + TRACE.replace("\n", "\n[rank1]: ") + "TimeoutError\n", {}, RANKS),
        (f"world_size=4\n{TRACE}ConnectionResetError: [Errno 104] Connection reset by peer\n", {}, RANKS),
        (f"{TRACE}RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer [::1]:4\n", {}, RANKS),
        (f"{TRACE}torch.distributed.DistBackendError: NCCL error\n", {}, "look for the rank that failed first"),
    ],
)
def test_only_a_job_that_has_ranks_is_told_to_look_at_the_first_of_them(
    tmp_path: Path, output: str, known: dict[str, Any], told: str
) -> None:
    verdict = judge(tmp_path, output, **known)
    assert verdict.kind is FailureClass.COMMUNICATION
    assert verdict.action.startswith(told)
    assert ("NCCL" in verdict.action) is (told is not ALONE)
    assert (f"holdfast restart {RUN_ID} " in verdict.action) is (told is ALONE)


def test_fewer_workers_are_the_first_advice_only_where_the_output_speaks_of_workers(tmp_path: Path) -> None:
    killed = judge(tmp_path, "step 1\n", signal=9, own_kills=Reading(1))
    assert killed.kind is FailureClass.OUT_OF_MEMORY
    assert killed.action.startswith("have it hold less at a time")
    loads = judge(tmp_path, "DataLoader with num_workers=8\nstep 1\n", signal=9, own_kills=Reading(1))
    assert loads.action.startswith("use fewer data-loader workers")


@each(
    ("had_s", "more"), [(2.1, ("5s", "3s")), (60.0, ("2m", "60s")), (3600.0, ("2h", "60m")), (25200.0, ("14h", "7h"))]
)
def test_who_ran_out_of_time_is_told_twice_what_it_had(tmp_path: Path, had_s: float, more: tuple[str, str]) -> None:
    told = judge(tmp_path, "step 1\n", code=124, duration_s=had_s)
    assert told.kind is FailureClass.TIMED_OUT
    assert f"holdfast restart {RUN_ID} --timeout {more[0]} (" in told.action
    assert told.action.endswith(f"holdfast limit {RUN_ID} --timeout +{more[1]}")
    # A part of its limit may have gone before the job began.
    waited = judge(tmp_path, "step 1\n", code=124, duration_s=had_s / 2, time_limit_s=had_s)
    assert waited.action == told.action


def test_a_job_that_asks_for_input_is_told_that_nobody_answers(tmp_path: Path) -> None:
    told = judge(tmp_path, f"your name? {TRACE}EOFError: EOF when reading a line\n")
    assert told.kind is BUG
    assert "the standard input of a job is empty" in told.action
