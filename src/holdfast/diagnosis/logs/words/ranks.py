"""What logs say about ranks: collectives, launchers, signals that were passed on. Data only.

A rank that fails takes the others with it, and those say more. What only follows from another rank's end is CASCADE.
"""

from __future__ import annotations

from holdfast.diagnosis.evidence import LineRole
from holdfast.diagnosis.logs.pattern import END, START, Pattern
from holdfast.model.verdict import FailureClass

_PG = "torch, ProcessGroupNCCL.cpp"

RANKS: tuple[Pattern, ...] = (
    Pattern(
        "collective.timeout",
        LineRole.ROOT,
        FailureClass.COMMUNICATION,
        ("caught collective operation timeout",),
        r"(?:\[Rank (?P<rank>\d+)\] )?Watchdog caught collective operation timeout:"
        r" WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+).*?Timeout\(ms\)=(?P<timeout_ms>\d+)\) ran"
        r" for (?P<ran_ms>\d+) milliseconds",
        (
            (
                "[rank1]:[E1120 10:00:00.123 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught "
                "collective operation timeout: "
                "WorkNCCL(SeqNum=55, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran "
                "for 600083 milliseconds before timing out."
            ),
        ),
        ("Watchdog caught collective operation timeout is explained here",),
        _PG,
    ),
    Pattern(
        "collective.stuck",
        LineRole.ROOT,
        FailureClass.COMMUNICATION,
        ("watchdog got stuck for",),
        r"ProcessGroup\w+'s watchdog got stuck for (?P<seconds>\d+) seconds",
        (
            (
                "[rank0]:[F1120 10:00:00 ProcessGroupNCCL.cpp:1557] [Rank 0] ProcessGroupNCCL's watchdog "
                "got stuck for 480 seconds without making progress"
            ),
        ),
        ("the watchdog got stuck for a while",),
        _PG,
    ),
    Pattern(
        "collective.mismatch",
        LineRole.ROOT,
        FailureClass.COMMUNICATION,
        ("mismatch between collectives", "is not the expected size", "Mismatch between collective"),
        r"Detected mismatch between collectives on ranks",
        (
            (
                "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running "
                "collective: CollectiveFingerPrint("
            ),
        ),
        ("no mismatch between collectives",),
        "torch, ProcessGroupWrapper.cpp",
        "ranks call different collectives: look for a branch that depends on the rank or on data",
    ),
    Pattern(
        "collective.gloo_timeout",
        LineRole.ROOT,
        FailureClass.COMMUNICATION,
        ("Timed out waiting", "gloo/transport/"),
        r"gloo/transport/\S+\] .*(?:Connection refused|[Tt]ime(?:d )?out|No route to host)"
        r"|Timed out waiting (?P<timeout_ms>\d+)ms for (?:recv|send) operation",
        (
            (
                "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out "
                "waiting 1800000ms for recv operation to complete"
            ),
        ),
        ("Timed out waiting for the lock",),
        "gloo, transport/tcp/unbound_buffer.cc",
    ),
    Pattern(
        "rendezvous",
        LineRole.ROOT,
        FailureClass.COMMUNICATION,
        (
            "waiting for clients",
            "client socket has timed out",
            "Socket Timeout",
            "wait timeout after",
            "Barrier timed out",
            "RendezvousTimeoutError",
            "Store timed out",
        ),
        r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. (?P<joined>\d+/\d+) clients"
        r" joined|client socket has timed out after \d+\w+ while trying to connect to \((?P<peer>[^)]*)\)"
        r"|^(?:\w+\.)*(?:RuntimeError|DistStoreError): (?:Socket Timeout|wait timeout after)"
        r"|^(?:\w+\.)*RendezvousTimeoutError|DEADLINE_EXCEEDED: Barrier timed out",
        (
            "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/2 clients joined.",
            "[c10d] The client socket has timed out after 600s while trying to connect to (node0, 29500).",
            "RuntimeError: Socket Timeout",
            "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /0",
            "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        ),
        ("set Socket Timeout to 30 s",),
        "torch, c10d TCPStore and elastic rendezvous; JAX distributed",
        "a rank never came: compare MASTER_ADDR, the port and the number of nodes on every node",
    ),
    Pattern(
        "collective.error",
        LineRole.ROOT,
        FailureClass.COMMUNICATION,
        (
            *("CCL error", "CCL Error"),
            *("ncclSystemError", "ncclRemoteError"),
            "ncclInternalError",
            "ncclUnhandledCudaError",
            "ncclInvalidUsage",
            "NCCL WARN",
            "Duplicate GPU detected",
        ),
        START
        + (
            r"(?:(?:[HMNRX]|one)CCL [Ee]rror|nccl(?:System|Remote|Internal|UnhandledCuda)Error|ncclInvalidUsage"
            r"|Duplicate GPU detected)\b|NCCL WARN (?:Duplicate GPU|Call to \w+ (?:.*)failed|Cuda failure)"
        ),
        (
            (
                "torch.distributed.DistBackendError: NCCL error in: "
                "../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1275, unhandled system error"
            ),
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
            "RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:1301 ERR02200 DIST",
            (
                "node1:55:99 [1] misc/socket.cc:484 NCCL WARN Call to connect to 10.0.0.2<4711> failed : "
                "Connection refused"
            ),
        ),
        (
            "NCCL INFO NET/Plugin: no plugin found",
            "NCCL WARN MSCCL++ environment is not set",
            "NCCL version 2.21.5+cuda12.4",
        ),
        "torch, NCCLUtils.hpp; NCCL",
        "look for the rank that failed first; run again with NCCL_DEBUG=INFO",
    ),
    Pattern(
        "port.in_use",
        LineRole.ROOT,
        FailureClass.COMMUNICATION,
        ("Address already in use", "EADDRINUSE", "Errno 98]", "port is already allocated"),
        START + r"(?:\[Errno 98\]|Address already in use" + END + r"|port is already allocated)|\bname: EADDRINUSE\b",
        (
            "OSError: [Errno 98] Address already in use",
            (
                "RuntimeError: The server socket has failed to listen on any local network address. "
                "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
            ),
        ),
        ("retry when the Address already in use error comes",),
        "errno(3) EADDRINUSE; torch, c10d socket.cpp",
        (
            "another job or a leftover holds the port: have the launcher choose one "
            "(--rdzv-endpoint=localhost:0, MASTER_PORT)"
        ),
    ),
    Pattern(
        "collective.aftermath",
        LineRole.CASCADE,
        FailureClass.COMMUNICATION,
        (
            "Some NCCL operations have failed",
            "taking the entire process down",
            "communicator was aborted",
            "remote process exited",
            "ncclRemoteError",
            "onnection closed by",
            "onnection reset by peer",
            "Broken pipe",
            "Heartbeat monitor timed out",
            "NCCL Abort",
            "Failed to recv",
            "sendBytes failed",
            "recvValue failed",
        ),
        r"Some NCCL operations have failed or timed out|taking the entire process down"
        r"|NCCL communicator was aborted on rank (?P<rank>\d+)"
        r"|remote process exited or there was a network error|ncclRemoteError"
        r"|(?<![\"\'`])\bConnection (?:closed by (?:remote )?peer|reset by peer)"
        r"|^(?:\w+\.)*BrokenPipeError: |Heartbeat monitor timed out|(?:sendBytes|recvValue) failed on",
        (
            (
                "[rank0]:[E ProcessGroupNCCL.cpp:629] [Rank 0] Some NCCL operations have failed or timed "
                "out. Due to the asynchronous nature"
            ),
            "RuntimeError: NCCL communicator was aborted on rank 1. ",
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
            "RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:4711",
            "RuntimeError: Connection reset by peer",
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            "BrokenPipeError: [Errno 32] Broken pipe",
        ),
        ("retrying when Broken pipe", "the connection closed by itself"),
        _PG + "; gloo",
    ),
    Pattern(
        "worker.exited",
        LineRole.CASCADE,
        None,
        (
            "DataLoader worker",
            "failed (exitcode",
            "ChildFailedError",
            "non-zero exit status",
            "Killing subprocess",
            "srun: ",
            "closing signal",
            "Terminated",
            "ProcessExitedException",
            "JAX distributed service detected",
            "Force Terminated",
            "non-zero exit code",
        ),
        r"DataLoader worker \(pid(?:\(s\))? (?P<pid>[\d, ]+)\) (?:exited unexpectedly"
        r"|is killed by signal: Terminated)"
        r"|failed \(exitcode: (?P<exitcode>-?\d+)\) local_rank: (?P<local_rank>\d+)"
        r"|^(?:\w+\.)*ChildFailedError|^(?:\w+\.)*CalledProcessError: .*non-zero exit status"
        r"|Killing subprocess \d+|Sending process \d+ closing signal (?!SIGHUP)(?P<signal>\w+)"
        r"|^(?:\w+\.)*ProcessExitedException: process (?P<process>\d+) terminated"
        r"|JAX distributed service detected fatal errors"
        r"|^srun: (?:error: .*task (?P<rank>\d+): (?:Exited|Terminated)|Force Terminated)"
        r"|^(?:\S+: line \d+: +\d+ )?Terminated(?:$| {2,}\S)",
        (
            "RuntimeError: DataLoader worker (pid(s) 3123) exited unexpectedly",
            (
                "E1120 10:00 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) "
                "local_rank: 0 (pid: 77) of binary: /usr/bin/python3"
            ),
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            "subprocess.CalledProcessError: Command '['python', 'x.py']' returned non-zero exit status 1.",
            "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 4242 closing signal SIGTERM",
            "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
            "srun: error: node2: task 3: Exited with exit code 1",
            "Terminated",
        ),
        ("DataLoader worker init done", "non-zero exit status is an error", "Terminated early: patience reached"),
        "torch elastic, DataLoader; DeepSpeed launcher; Slurm",
    ),
    Pattern(
        "elastic.root",
        LineRole.CONFIRMATION,
        None,
        ("Root Cause (first observed failure)",),
        r"Root Cause \(first observed failure\):(?s:.{0,400}?)\n\s*rank\s*: (?P<rank>\d+) \(local_rank:"
        r" \d+\)\n\s*exitcode\s*: (?P<exitcode>-?\d+) \(pid: (?P<pid>\d+)\)[^\n]*(?:\n\s*error_file:"
        r" (?P<error_file>\S+))?(?:\n\s*traceback\s*: Signal (?P<signal>\d+))?",
        (
            (
                "Root Cause (first observed failure):\n[0]:\n  time      : 2023-08-01_01:06:47\n  host   "
                "   : n1\n  rank      : 4 (local_rank: 4)\n"
                "  exitcode  : -9 (pid: 208585)  (SIGKILL)\n  error_file: <N/A>\n  traceback : Signal 9 (SIGKILL) "
                "received by PID 208585"
            ),
        ),
        ("Root Cause (first observed failure):\n[0]:\n  time : x\n",),
        "torch/distributed/elastic/multiprocessing/errors",
        lines=9,
    ),
    Pattern(
        "hang_up",
        LineRole.ROOT,
        FailureClass.HANG_UP,
        ("death signal", "closing signal SIGHUP", "got signal: 1", "Hangup"),
        (
            r"Received (?:Signals\.SIGHUP|1) death signal, shutting down workers|closing signal SIGHUP"
            r"|SignalException: Process \d+ got signal: 1\b|^(?:\S+: line \d+: +\d+ )?Hangup(?:$| {2,})"
        ),
        (
            (
                "W1120 10:00 torch/distributed/elastic/agent/server/api.py:704] Received Signals.SIGHUP "
                "death signal, shutting down workers"
            ),
            "WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers",
            "Sending process 77 closing signal SIGHUP",
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 77 got signal: 1",
        ),
        ("Received 15 death signal, shutting down workers", "nohup: ignoring input", "got signal: 15 at Process 1"),
        "torch elastic, which installs a SIGHUP handler of its own: nohup does not protect it",
        gotchas=("GEN2", "U3"),
    ),
    Pattern(
        "terminated",
        LineRole.ROOT,
        FailureClass.KILLED,
        ("death signal", "got signal: ", "CANCELLED AT", "TERM_OWNER", "TERM_ADMIN", "TERM_FORCE"),
        r"Received (?:Signals\.SIG(?P<name>TERM|INT)|(?P<number>15|2)) death signal, shutting down workers"
        r"|SignalException: Process \d+ got signal: (?P<signal>15|2)\b"
        r"|JOB \d+ ON \S+ CANCELLED AT \S+ \*\*\*|\bTERM_(?:FORCE_)?(?:OWNER|ADMIN)\b",
        (
            "Received 15 death signal, shutting down workers",
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 77 got signal: 15",
            "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-20T10:00:00 ***",
        ),
        (
            "Received 1 death signal, shutting down workers",
            "*** JOB 4711 ON n1 CANCELLED AT 2026-11-20T10:00:00 DUE TO TIME LIMIT ***",
        ),
        "torch elastic; Slurm",
    ),
    Pattern(
        "walltime",
        LineRole.ROOT,
        FailureClass.TIMED_OUT,
        (
            *("DUE TO TIME LIMIT", "longer than specified deadline", "TERM_RUNLIMIT", "TERM_CPULIMIT", "job killed: "),
            *(
                "timeout: sending signal",
                "type=timeout",
                "allocation expired",
                "DeadlineExceeded",
                "MaxRuntimeExceeded",
                "exceeded",
                "result 'timeout'",
                "CellTimeoutError",
            ),
        ),
        r"^timeout: sending signal \w+ to command|active longer than (?:the )?specified deadline"
        r"|CANCELLED AT \S+ DUE TO TIME LIMIT|\bTERM_(?:RUN|CPU)LIMIT\b"
        r"|\bjob killed: (?:walltime|cput)\b|\b[Rr]eason\W{1,10}DeadlineExceeded\b|\bMaxRuntimeExceeded\b"
        r"|\btype=timeout\b|\ballocation (?:has )?expired\b|\bresult 'timeout'|^(?:\w+\.)*CellTimeoutError\b"
        r"|\bduration exceeded(?: \w+)? timeout\b"
        r"|\bexceeded (?:\S+ ){0,4}(?:run(?:ning)? ?time|wall(?:[- ]?clock)? ?time|execution time|execute duration)\b",
        (
            "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-20T10:00:00 DUE TO TIME LIMIT ***",
            "=>> PBS: job killed: walltime 3601 exceeded limit 3600",
            "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
            "  Process exceeded running time limit (4h)",
            "Job attempt duration exceeded timeout",
            "timeout: sending signal TERM to command 'python'",
            "nbclient.exceptions.CellTimeoutError: A cell timed out while it was being executed, after 600 seconds.",
            "      Reason:       DeadlineExceeded",
        ),
        (
            "jobs are ended DUE TO TIME LIMIT",
            "google.api_core.exceptions.DeadlineExceeded: 504 Deadline Exceeded",
            "the loss exceeded its bound 3 times",
        ),
        "Slurm; kubernetes, activeDeadlineSeconds; LSF; PBS; Nextflow; AWS Batch; SageMaker; nbclient; systemd",
    ),
    Pattern(
        "preempted",
        LineRole.ROOT,
        FailureClass.PREEMPTED,
        ("DUE TO PREEMPTION", "DUE TO NODE FAILURE"),
        r"CANCELLED AT \S+ DUE TO PREEMPTION",
        ("slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-20T10:00:00 DUE TO PREEMPTION ***",),
        ("jobs are ended DUE TO PREEMPTION",),
        "Slurm",
    ),
    Pattern(
        "node.gone",
        LineRole.ROOT,
        FailureClass.TRANSIENT,
        ("holdfast: node ",),
        r"^holdfast: node (?P<node>\d+) \((?P<host>[^)]*)\) is gone:",
        ("holdfast: node 1 (gpu07) is gone: its process of holdfast was killed, or the node was lost",),
        ("holdfast: node 1 (gpu07) failed with exit code 1; the others are ended with it",),
        "agent.place.nodes.lead",
    ),
)
