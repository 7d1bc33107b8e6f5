"""Whole logs of failures, each with the class it must get; and logs that only look like one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.diagnosis.evidence import Answer
from holdfast.diagnosis.logs.attribute import judge_log
from holdfast.diagnosis.logs.scan import read_log
from holdfast.model.verdict import Confidence, FailureClass
from tests.each import each

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.diagnosis.evidence import Detection

pytestmark = [pytest.mark.files, pytest.mark.requirement("FAIL-01")]

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()\n'
STEPS = "".join(f"step {number} loss {1 / (number + 1):.4f} mean squared Error 0.1, 0 errors\n" for number in range(20))
ELASTIC = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2023-08-01_01:06:47
  host      : n1
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 208585)
  error_file: <N/A>
  traceback : {words}
============================================================
"""


def ranked(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


WATCHDOG = (
    "[rank0]:[E1120 10:00:00 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=55, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600083 milliseconds\n"
    "[rank0]:[E1120 10:00:01 ProcessGroupNCCL.cpp:629] [Rank 0] Some NCCL operations have failed or timed out.\n"
    "[rank0]:[E1120 10:00:01 ProcessGroupNCCL.cpp:635] To avoid data inconsistency, we are taking "
    "the entire process down.\n"
)
CASES: dict[str, tuple[FailureClass, str]] = {
    "vram": (
        FailureClass.GPU_OUT_OF_MEMORY,
        TRACE + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
    ),
    "vram, older torch": (
        FailureClass.GPU_OUT_OF_MEMORY,
        TRACE + "RuntimeError: CUDA out of memory. Tried to allocate 1 GiB\n",
    ),
    "vram, cublas": (
        FailureClass.GPU_OUT_OF_MEMORY,
        TRACE + "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n",
    ),
    "vram, xla": (
        FailureClass.GPU_OUT_OF_MEMORY,
        TRACE
        + "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.\n",
    ),
    "vram of rank 3, others follow": (
        FailureClass.GPU_OUT_OF_MEMORY,
        ranked(3, TRACE + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
        + ranked(1, TRACE + "RuntimeError: NCCL communicator was aborted on rank 1.")
        + WATCHDOG,
    ),
    "vram, then the tracker fails on leaving": (
        FailureClass.GPU_OUT_OF_MEMORY,
        TRACE
        + (
            "torch.OutOfMemoryError: CUDA out of memory.\n\nDuring handling of the above exception, "
            "another exception occurred:\n\n"
        )
        + TRACE
        + "wandb.errors.CommError: connection lost\n",
    ),
    "ram": (FailureClass.OUT_OF_MEMORY, TRACE + "MemoryError\n"),
    "ram, numpy": (
        FailureClass.OUT_OF_MEMORY,
        TRACE + "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 29.8 GiB for an array\n",
    ),
    "ram, native": (
        FailureClass.OUT_OF_MEMORY,
        (
            "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  "
            "std::bad_alloc\nAborted (core dumped)\n"
        ),
    ),
    "ram, slurm": (
        FailureClass.OUT_OF_MEMORY,
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have "
            "been OOM Killed.\n"
            "srun: error: n1: task 0: Out Of Memory\n"
        ),
    ),
    "ram, systemd-oomd": (
        FailureClass.OUT_OF_MEMORY,
        "systemd-oomd[6]: Killed /user.slice/u.scope due to memory pressure for /user.slice being 56.11% > 50.00%\n",
    ),
    "shm": (
        FailureClass.SHARED_MEMORY,
        (
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient "
            "shared memory (shm).\n"
        )
        + TRACE
        + "RuntimeError: DataLoader worker (pid 35) is killed by signal: Bus error. It is possible that\n",
    ),
    "shm is full": (FailureClass.SHARED_MEMORY, TRACE + "OSError: [Errno 28] No space left on device: '/dev/shm/x'\n"),
    "shm, nccl": (
        FailureClass.SHARED_MEMORY,
        "n:1:2 [0] misc/shmutils.cc:72 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-J (size 9)\n"
        + TRACE
        + "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1275, unhandled system error\n",
    ),
    "open files": (FailureClass.RESOURCE_LIMIT, TRACE + "OSError: [Errno 24] Too many open files: '/data/x'\n"),
    "threads": (FailureClass.RESOURCE_LIMIT, TRACE + "RuntimeError: can't start new thread\n"),
    "disk": (FailureClass.DISK_FULL, TRACE + "OSError: [Errno 28] No space left on device: '/data/x.pt'\n"),
    "disk, torch's writer": (
        FailureClass.DISK_FULL,
        TRACE + "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 5632 vs 5526\n",
    ),
    "disk, shell": (FailureClass.DISK_FULL, "cp: error writing 'b': No space left on device\n"),
    "disk, then a bug that follows": (
        FailureClass.DISK_FULL,
        "2026-11-20 10:00:00 - ERROR - [Errno 28] No space left on device\n" + STEPS + TRACE + "KeyError: 'state'\n",
    ),
    "quota": (FailureClass.DISK_FULL, TRACE + "OSError: [Errno 122] Disk quota exceeded: '/home/u/x'\n"),
    "stale": (FailureClass.STORAGE_FAULT, TRACE + "OSError: [Errno 116] Stale file handle: '/nfs/x'\n"),
    "read only": (FailureClass.STORAGE_FAULT, TRACE + "OSError: [Errno 30] Read-only file system: '/data/x'\n"),
    "input/output": (FailureClass.STORAGE_FAULT, TRACE + "OSError: [Errno 5] Input/output error: '/data/x'\n"),
    "a checkpoint that was cut": (
        FailureClass.STORAGE_FAULT,
        TRACE + "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n",
    ),
    "no kernel": (
        FailureClass.ENVIRONMENT,
        TRACE + "RuntimeError: CUDA error: no kernel image is available for execution on the device\n",
    ),
    "old driver": (
        FailureClass.ENVIRONMENT,
        TRACE + "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update\n",
    ),
    "cpu build": (FailureClass.ENVIRONMENT, TRACE + "AssertionError: Torch not compiled with CUDA enabled\n"),
    "no card": (FailureClass.ENVIRONMENT, TRACE + "RuntimeError: No CUDA GPUs are available\n"),
    "package": (FailureClass.ENVIRONMENT, TRACE + "ModuleNotFoundError: No module named 'torch'\n"),
    "library": (
        FailureClass.ENVIRONMENT,
        TRACE + "ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory\n",
    ),
    "input file": (
        FailureClass.ENVIRONMENT,
        TRACE + "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.idx'\n",
    ),
    "ecc": (FailureClass.HARDWARE, TRACE + "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"),
    "lost card": (
        FailureClass.HARDWARE,
        "Unable to determine the device handle for GPU 0000:3b:00.0: GPU is lost.  Reboot the system\n",
    ),
    "device-side assert": (
        FailureClass.BUG,
        "ScatterGatherKernel.cu:144: operator(): block: [0,0,0], thread: [1,0,0] Assertion `idx_dim >= 0` failed.\n"
        + TRACE
        + "RuntimeError: CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA` to enable\n",
    ),
    "watchdog": (FailureClass.COMMUNICATION, STEPS + WATCHDOG + "Aborted (core dumped)\n"),
    "gloo": (
        FailureClass.COMMUNICATION,
        TRACE
        + "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation\n",
    ),
    "rendezvous": (
        FailureClass.COMMUNICATION,
        TRACE
        + "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/2 clients joined.\n",
    ),
    "port": (FailureClass.COMMUNICATION, TRACE + "OSError: [Errno 98] Address already in use\n"),
    "a rank's bug, then the watchdog": (
        FailureClass.BUG,
        ranked(1, TRACE + "KeyError: 'lr'") + WATCHDOG + TRACE + ELASTIC.format(rank=1, code=1, words="To enable"),
    ),
    "killed rank": (
        FailureClass.KILLED,
        STEPS
        + "WARNING: Sending process 7 closing signal SIGTERM\n"
        + TRACE
        + ELASTIC.format(rank=4, code=-9, words="Signal 9 (SIGKILL) received by PID 208585"),
    ),
    "crashed rank": (
        FailureClass.NATIVE_CRASH,
        TRACE + ELASTIC.format(rank=2, code=-11, words="Signal 11 (SIGSEGV) received by PID 208585"),
    ),
    "torchrun's own hang-up": (
        FailureClass.HANG_UP,
        "W1120 10:00 api.py:704] Received Signals.SIGHUP death signal, shutting down workers\n"
        "W1120 10:00 api.py:897] Sending process 77 closing signal SIGHUP\n"
        + TRACE
        + "torch.distributed.elastic.multiprocessing.api.SignalException: Process 77 got signal: 1\n",
    ),
    "torchrun was asked to end": (
        FailureClass.KILLED,
        TRACE + "torch.distributed.elastic.multiprocessing.api.SignalException: Process 77 got signal: 15\n",
    ),
    "walltime": (
        FailureClass.TIMED_OUT,
        "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-20T10:00:00 DUE TO TIME LIMIT ***\n",
    ),
    "preemption": (
        FailureClass.PREEMPTED,
        "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-20T10:00:00 DUE TO PREEMPTION ***\n",
    ),
    "tracker at start": (
        FailureClass.TRANSIENT,
        TRACE + "wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec.\n",
    ),
    "tracker, mlflow": (
        FailureClass.TRANSIENT,
        TRACE + "mlflow.exceptions.MlflowException: API request to http://m:5000/api failed with exception HTTP\n",
    ),
    "name server": (
        FailureClass.TRANSIENT,
        TRACE + "socket.gaierror: [Errno -3] Temporary failure in name resolution\n",
    ),
    "dropped transfer": (
        FailureClass.TRANSIENT,
        TRACE + "requests.exceptions.ChunkedEncodingError: ('Connection broken: IncompleteRead(5 bytes read)')\n",
    ),
    "carriage returns": (FailureClass.EXEC_FAILED, "./train.sh: line 2: $'\\r': command not found\n"),
    "interpreter": (
        FailureClass.EXEC_FAILED,
        "bash: ./train.sh: /bin/bash^M: bad interpreter: No such file or directory\n",
    ),
    "command": (FailureClass.EXEC_FAILED, "./train.sh: line 3: torchrun: command not found\n"),
    "format": (FailureClass.EXEC_FAILED, "bash: ./x: cannot execute binary file: Exec format error\n"),
    "segfault": (
        FailureClass.NATIVE_CRASH,
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n",
    ),
    "heap": (FailureClass.NATIVE_CRASH, "double free or corruption (!prev)\nAborted (core dumped)\n"),
    "bug": (FailureClass.BUG, STEPS + TRACE + "KeyError: 'lr'\n"),
    "bug of a library": (
        FailureClass.BUG,
        TRACE + "omegaconf.errors.ConfigAttributeError: Missing key lr\n    full_key: lr\n",
    ),
    "bug, in colours of rich": (
        FailureClass.BUG,
        "╭───── Traceback (most recent call last) ─────╮\n│ train.py:9 in main │\n╰──────╯\nValueError: bad lr\n",
    ),
    "bug behind a progress bar": (
        FailureClass.BUG,
        "\r 10%|█ | 1/10\r 20%|██ | 2/10 [00:01, 4it/s]" + TRACE + "ValueError: x\n",
    ),
    "syntax": (FailureClass.BUG, '  File "x.py", line 1\n    a b\n    ^\nSyntaxError: invalid syntax\n'),
    "arguments": (FailureClass.BUG, "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --lrr 3\n"),
    "nan": (FailureClass.DIVERGED, "".join(f"step {n} loss nan\n" for n in range(9))),
    "nan, told by the trainer": (
        FailureClass.DIVERGED,
        TRACE + "FloatingPointError: Loss became infinite or NaN at iteration=2313!\n",
    ),
    "a bug after the tracker was away at start": (
        FailureClass.BUG,
        "wandb: Network error (ConnectionError), entering retry loop.\n" + STEPS + TRACE + "IndexError: list index\n",
    ),
}
HEALTHY = {
    "tensorflow's start": (
        "2026-11-20 10:00:00.1: E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] "
        "Unable to register cuDNN "
        "factory: Attempting to register factory for plugin cuDNN when one has already been registered\n"
        "2026-11-20 10:00:00.2: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT "
        "Warning: Could not find TensorRT\n"
        "2026-11-20 10:00:00.3: W dso_loader.cc:64] Could not load dynamic library 'libnvinfer.so.7'; dlerror: "
        "libnvinfer.so.7: cannot open shared object file: No such file or directory; LD_LIBRARY_PATH: /usr/lib\n"
        "32/938 [>.............................] - ETA: 3:32 - loss: 0.5019 - accuracy: 0.7500\n"
    ),
    "nccl's start": (
        "n1:55:55 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
        "n1:55:55 [0] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so), using internal implementation\n"
        "n1:55:91 [0] NCCL INFO NCCL_SHM_DISABLE set by environment to 0.\n"
        "n1:55:91 [0] transport/p2p.cc:151 NCCL WARN P2P is disabled between connected GPUs 1 and 0\n"
    ),
    "hugging face": (
        "Some weights of Bert were not initialized from the model checkpoint and are newly initialized: ['x']\n"
        "Token indices sequence length is longer than the specified maximum (600 > 512). Running this will result in "
        "indexing errors\n{'loss': 0.31, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}\n"
        "UserWarning: Failed to load image Python extension: '/x/image.so: undefined symbol: _ZN3c106'\n"
    ),
    "deepspeed": "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n",
    "retries": (
        "WARNING urllib3.connectionpool: Retrying (Retry(total=4)) after connection broken by "
        "'NameResolutionError(\"Failed to resolve 'x'\")': /api\n"
        "wandb: Network error (ReadTimeout), entering retry loop.\n"
    ),
    "a shell that goes on": (
        "./train.sh: line 3: nvidia-smi: command not found\ncp: cannot stat 'x': No such file or directory\n"
    ),
    "a sample that was left out": TRACE
    + "OSError: image file is truncated (5 bytes not processed)\nskipping sample 7\n",
}
UNKNOWN = {
    "nothing": "",
    "progress": STEPS,
    "killed, by nobody knows whom": STEPS + "Killed\n",
    "only what follows": "RuntimeError: DataLoader worker (pid(s) 3123) exited unexpectedly\n",
    "one step that was not finite": "step 1 loss nan\nstep 2 loss 0.3\n",
    "an ignored exception": "Exception ignored in: <function X.__del__>\n" + TRACE + "TypeError: 'NoneType'\n" + STEPS,
    "a test of words": "checking that `CUDA out of memory` and 'No space left on device' are handled\n",
    "an overwritten state": "MemoryError: x\rstep 1 of 10\rstep 2 of 10\n",
}


def judge(tmp_path: Path, text: str) -> tuple[Detection, ...]:
    log = tmp_path / "output.log"
    log.write_text(text, newline="")
    return judge_log(read_log(str(log)))


@pytest.mark.requirement("FAIL-11")
@pytest.mark.requirement("FAIL-12")
@pytest.mark.requirement("FAIL-13")
@each("name", CASES)
def test_a_log_gets_its_class(tmp_path: Path, name: str) -> None:
    kind, text = CASES[name]
    best = judge(tmp_path, text)[0]
    assert (best.kind, best.answer) == (kind, Answer.YES), best
    assert best.confidence is not Confidence.CERTAIN, "words alone are never certain"
    assert best.evidence_for
    assert best.unknown == ()


@each("name", [name for name, (_, text) in CASES.items() if "\r" not in text])
def test_a_class_does_not_hang_on_line_ends_or_on_what_stands_before(tmp_path: Path, name: str) -> None:
    kind, text = CASES[name]
    assert judge(tmp_path, STEPS + text.replace("\n", "\r\n"))[0].kind is kind


@each("name", UNKNOWN)
def test_what_names_no_cause_stays_unknown(tmp_path: Path, name: str) -> None:
    best = judge(tmp_path, UNKNOWN[name])[0]
    sure = best.answer is Answer.YES and best.confidence is not Confidence.POSSIBLE
    assert not sure, best


@pytest.mark.requirement("MON-13")
@each("name", [name for name in HEALTHY if not name.startswith("a sample")])
def test_what_healthy_runs_print_names_no_cause(tmp_path: Path, name: str) -> None:
    for detection in judge(tmp_path, STEPS + HEALTHY[name] + STEPS):
        assert detection.answer is Answer.NO or detection.confidence is Confidence.POSSIBLE, detection


@each("name", HEALTHY)
def test_the_bug_that_comes_later_is_the_cause(tmp_path: Path, name: str) -> None:
    long = "step loss 0.1234567890123456789012345678901234567890\n" * 90_000
    best = judge(tmp_path, HEALTHY[name] + long + TRACE + "KeyError: 'lr'\n")[0]
    assert (best.kind, best.confidence) == (FailureClass.BUG, Confidence.LIKELY)
    assert best.evidence_for[0].text == "KeyError: 'lr'"


def test_what_was_survived_long_ago_is_only_possible(tmp_path: Path) -> None:
    long = "step loss 0.1234567890123456789012345678901234567890\n" * 90_000
    best = judge(tmp_path, CASES["vram"][1] + long + "Killed\n")[0]
    assert (best.kind, best.confidence) == (FailureClass.GPU_OUT_OF_MEMORY, Confidence.POSSIBLE)
    best = judge(tmp_path, CASES["vram"][1] + long + CASES["disk"][1])[0]
    assert (best.kind, best.confidence) == (FailureClass.DISK_FULL, Confidence.LIKELY)


def test_killed_alone_is_no_cause(tmp_path: Path) -> None:
    (only,) = judge(tmp_path, STEPS + "Killed\n")
    assert (only.kind, only.answer) == (FailureClass.UNKNOWN, Answer.NO)
    assert only.evidence_for[0].text == "Killed"


def test_FAIL_12_the_rank_that_failed_first_is_named(tmp_path: Path) -> None:
    for name, rank in [
        ("vram of rank 3, others follow", "3"),
        ("a rank's bug, then the watchdog", "1"),
        ("watchdog", "0"),
    ]:
        assert judge(tmp_path, CASES[name][1])[0].facts["rank"] == rank, name
    assert "rank 4" in judge(tmp_path, CASES["killed rank"][1])[0].evidence_for[0].text


def test_only_the_current_attempt_counts(tmp_path: Path) -> None:
    for number, text in [(1, CASES["vram"][1]), (2, STEPS)]:
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "output.log").write_text(text)
    assert judge_log(read_log(str(tmp_path / "2" / "output.log")))[0].answer is Answer.NO
