"""What launchers and schedulers say about a job: how a part ended, who took it, what it lacked. Data only.

A launcher's own exception says only that something below it failed (CASCADE). Its report of *how* a process ended
(``exitcode``, or a signal in ``ended_by``) counts where nothing names a cause.
"""

from __future__ import annotations

from holdfast.diagnosis.evidence import LineRole
from holdfast.diagnosis.logs.pattern import Pattern
from holdfast.model.verdict import FailureClass

LAUNCHERS: tuple[Pattern, ...] = (
    Pattern(
        "report.launcher",
        LineRole.CONFIRMATION,
        None,
        (
            *("return code = ", "exit codes of the workers are", "terminated with signal", "terminated with exit code"),
            *("exited on signal", "signal 9 (", "signal 11 (", "signal 6 (", "signal 7 (", "signal 4 (", "signal 15 ("),
            *("Exited with exit code", "ssh exited with exit code", "Exit code:", "Exit Code:", "with errorcode"),
            *("exit status", "exited with", "exit code", "status=", "egsignal", "by SIG", "signal SIG", "by signal"),
            *("signal: ", "] Killed", "] Error ", "] Segm", "] Abort", "] Term", "non-zero status", "xit code"),
        ),
        r"\bexits with return code = (?P<exitcode>-?\d{1,3})\b"
        r"|exit codes of the workers are \{(?:SIG\w+\((?P<worker>-\d+)\)|EXIT\((?P<worker_exit>\d+)\))"
        r"|: process \d+ terminated with (?:signal (?P<ended_by>SIG\w+)|exit code (?P<spawned>\d+))"
        r"|(?:exited on |^)signal (?P<signalled>\d{1,2}) \([A-Z]"
        r"|^srun: error: .*tasks? (?P<rank>\d+)\S*: Exited with exit code (?P<task>\d+)"
        r"|^ +Exit [Cc]ode: +(?P<mpi>\d{1,3})$|^with errorcode (?P<abort>\d{1,3})\."
        r"|\*\*\* \[.*\] (?:Error (?P<recipe>\d{1,3})|(?P<named>Killed|Terminated|Segmentation fault|Aborted"
        r"|Bus error))"
        r"|\bcode=(?:killed|dumped), status=\d+/(?P<status>[A-Z]+)|\bNegsignal\.(?P<negative>SIG[A-Z]+)"
        r"|\b(?:terminated|killed|interrupted) by (?:signal )?(?:(?P<by>SIG[A-Z]+)|(?P<by_number>\d{1,2})\b)"
        r"|^(?:.{0,60}: )?signal: (?P<go>killed|aborted|segmentation fault|terminated)"
        r"|\b(?:error )?(?:exit|exited with|return|non-zero) (?:a )?(?:(?:non-zero )?(?:exit )?(?:code"
        r"|status)(?: of)?)[ :=(]{1,3}"
        r"(?P<status_code>[1-9]\d{0,2})\b",
        (
            (
                "[2026-11-20 13:11:27,885] [ERROR] [launch.py:321:sigkill_handler] ['python', 'x.py'] exits with "
                "return code = -9"
            ),
            "The exit codes of the workers are {SIGSEGV(-11)}",
            "The exit codes of the workers are {EXIT(1), EXIT(1)}",
            "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV",
            "mpirun noticed that process rank 0 with PID 7 on node n1 exited on signal 9 (Killed).",
            "signal 11 (Segmentation fault).",
            "srun: error: n2: task 3: Exited with exit code 17",
            "  Exit code:    1",
            "make: *** [Makefile:7: train] Killed",
            "  Process `TRAIN (fold 2)` terminated with an error exit status (137)",
            "systemd[1]: train.service: Main process exited, code=killed, status=9/KILL",
            "[INFO] Task exited with return code Negsignal.SIGKILL",
            "train-1 exited with code 137",
            "fish: Job 1, 'python x.py' terminated by signal SIGKILL (Forced quit)",
            "signal: killed",
            "The replica workerpool0-0 exited with a non-zero status of 1.",
        ),
        (
            "the return code = 0 of the check",
            "waits for signal 15 (TERM)",
            "Exit code: see below",
            "exit code 0",
            "workers exited with code 0",
        ),
        "DeepSpeed launcher/launch.py; loky; torch/multiprocessing/spawn.py; Open MPI; Slurm",
    ),
    Pattern(
        "wrapper",
        LineRole.CASCADE,
        None,
        (
            *("PapermillExecutionError", "CellExecutionError", "DeadKernelError", "RayTaskError", "ActorDiedError"),
            *(
                "RayActorError",
                "WorkerCrashedError",
                "InstantiationException",
                "ProcessRaisedException",
                "ExceptionGroup",
            ),
            *("TerminatedWorkerError", "See root cause above", "TuneError", "conda.cli.main_run", "EngineDeadError"),
            *(
                "ActorUnavailableError",
                "ActorUnschedulableError",
                "root cause",
                "stack trace for",
                "ExecutionException",
            ),
            *("FailedJobError", "UncompletedJobError"),
        ),
        r"^(?:\w+\.)*(?:PapermillExecutionError|CellExecutionError|DeadKernelError|RayTaskError\(\w+\)|ActorDiedError"
        r"|RayActorError|WorkerCrashedError|InstantiationException|ProcessRaisedException|(?:Base)?ExceptionGroup"
        r"|TerminatedWorkerError|TuneError|EngineDeadError|Actor\w+Error)(?:: |$|:$)"
        r"|^(?:\w+\.)*\w+: .*[Ss]ee (?:the )?(?:root cause|stack ?trace|traceback|errors?|logs?)[^.]{0,40}\b(?:above"
        r"|root cause)\b"
        r"|^(?:\w+\.)*(?:ExecutionException|FailedJobError|UncompletedJobError): |^ERROR conda\.cli\.main_run",
        (
            "papermill.exceptions.PapermillExecutionError: ",
            "nbclient.exceptions.CellExecutionError: An error occurred while executing the following cell:",
            "ray.exceptions.RayTaskError(ValueError): ray::preprocess() (pid=9912, ip=10.0.0.7)",
            "hydra.errors.InstantiationException: Error in call to target 'models.vit.Net':",
            "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
            "RuntimeError: Engine core initialization failed. See root cause above.",
            "RuntimeError: Engine process failed to start. See stack trace for the root cause.",
            "mlflow.exceptions.ExecutionException: Run (ID '7') failed",
            "ERROR conda.cli.main_run:execute(127): `conda run python train.py` failed. (See above for error)",
        ),
        ("class TuneError is documented", "an ExceptionGroup: of two"),
        "papermill, nbclient, ray, hydra, torch, loky, vLLM, conda: what a wrapper raises for what failed inside",
    ),
    Pattern(
        "schedule.refused",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        (
            *("Unable to create step", "job submission failed", "Unable to allocate resources", "not enough slots"),
            *("ErrImagePull", "ImagePullBackOff", "pull access denied", "manifest unknown", "FailedScheduling"),
            *("Error response from daemon", "runtime create failed", "InvalidImageName"),
            *("CreateContainerConfigError", "executable file not found in", "failed to import docker image"),
            *(
                "FailedMount",
                "launch failed",
                "Task launch for",
                "FATAL:  ",
                "pyxis: ",
                "CannotPullContainer",
                "nvidia-container-cli: ",
            ),
        ),
        r"^(?:srun|sbatch|salloc): error: (?:Unable to (?:create step|allocate resources)"
        r"|Batch job submission failed|Task launch for \S+ failed|Application launch failed)(?!.*(?:temporarily"
        r"|timed out))"
        r"|^FATAL: {2,}(?!.*(?:space left|Input/output|extract command failed))\S|error: pyxis: "
        r"|\bnvidia-container-cli: .*(?:error"
        r"|unsatisfied|fail)|\bCannotPullContainer\w*"
        r"|not enough slots available in the system|\b(?:ErrImagePull|ImagePullBackOff|InvalidImageName"
        r"|CreateContainerConfigError)\b|pull access denied|manifest unknown|\bFailed(?:Scheduling|Mount)\b"
        r"|^docker: Error response from daemon: |OCI runtime create failed"
        r"|pyxis: failed to import docker image|exec: \"[^\"]*\": executable file not found in",
        (
            "srun: error: Unable to create step for job 4711: Invalid generic resource (gres) specification",
            "sbatch: error: Batch job submission failed: Requested node configuration is not available",
            "There are not enough slots available in the system to satisfy the 8",
            "  Warning  Failed     2s    kubelet  Error: ImagePullBackOff",
            "docker: Error response from daemon: unknown or invalid runtime name: nvidia",
            "FATAL:   could not open image /shared/img/train.sif: failed to retrieve path",
            "FATAL:   container creation failed: mount /proc/self/fd/3 error: can't mount image",
            "srun: error: Task launch for StepId=4711.0 failed on node n7: Job credential expired",
        ),
        ("srun: Job step creation temporarily disabled, retrying", "docs: what ImagePull means"),
        "Slurm; Open MPI; kubernetes, pkg/kubelet/images; docker; Apptainer",
        "what it asks for is not there (image, cards, slots, partition): correct the request, then run again",
    ),
    Pattern(
        "launch.exec",
        LineRole.ROOT,
        FailureClass.EXEC_FAILED,
        ("execve(): ",),
        r"\bexecve\(\): \S.*: (?:Permission denied|No such file or directory|Exec format error)$",
        (
            "slurmstepd: error: execve(): /home/me/run_all.sh: Permission denied",
            "slurmstepd: error: execve(): train: No such file or directory",
        ),
        ("strace: execve(): traced",),
        "Slurm, slurmstepd/task.c",
        "the command cannot be executed there: chmod +x, its first line, or its path",
    ),
    Pattern(
        "pod.preempted",
        LineRole.ROOT,
        FailureClass.PREEMPTED,
        (
            *("Preempted by", "DUE TO JOB REQUEUE", "DUE TO NODE FAILURE", "DUE TO NODE_FAIL"),
            *("TaintManagerEviction", "NodeNotReady", "NodeLost", "spot instance", "interruption notice"),
            *("TERM_PREEMPT", "TERM_REQUEUE", "Job was evicted", "Host EC2", " preempted"),
            *("/preempted", "eclaimed", "nterruption notice", "ermination notice", "ermination-time"),
        ),
        r"\bTERM_(?:PREEMPT|REQUEUE)\w*|\bJob was evicted\b|\bHost EC2 \(instance \S+\) terminated"
        r"|\b(?:[Ii]nstance|[Nn]ode|VM|[Jj]ob)\b.{0,40} (?:was|(?:has|is) be(?:en|ing)|will be) preempted"
        r"|\b(?:TaintManagerEviction|NodeNotReady|NodeLost)\b|spot (?:instance )?interruption notice"
        r"|\binstance/preempted\b.{0,10}\bTRUE\b|\b[Ss]pot\b.{0,20}\b(?:interruption|termination) notice\b"
        r"|\b(?:[Ii]nstance|[Nn]ode|VM|[Mm]achine)\b.{0,30} (?:is|was|being|be) (?:being )?reclaimed\b"
        r"|\bPreempted by (?:pod|a pod|\S+ on node)|CANCELLED AT \S+ DUE TO (?:JOB REQUEUE|NODE[ _]FAIL)",
        (
            "  Normal  Preempted  3s  default-scheduler  Preempted by pod 7c-11 on node gpu-3",
            "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-20T10:00:00 DUE TO JOB REQUEUE ***",
            "TERM_PREEMPT: job killed after preemption",
            "Host EC2 (instance i-0a1) terminated.",
            "Instance 'trainer-1' was preempted.",
            "[W 03:10:52] metadata watcher: instance/preempted -> TRUE, 30 seconds until shutdown",
            "exiting because this VM is being reclaimed",
            "received EC2 spot interruption notice, action=terminate",
            "[watcher] instance tpu-vm-7 is being preempted",
            "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-20T10:00:00 DUE TO NODE FAILURE, SEE LOG ***",
        ),
        (
            *("jobs may be Preempted by others", "no instance was evicted", "memory that was reclaimed: 3 GiB"),
            "polling for a spot interruption every 5 s",
        ),
        "kubernetes scheduler; Slurm",
    ),
    Pattern(
        "collective.shut_down",
        LineRole.ROOT,
        FailureClass.COMMUNICATION,
        (
            *(
                "HorovodInternalError",
                "Horovod has been shut down",
                "NET/IB : Got completion",
                "NET/IB : Got async event",
            ),
            *("UCX  ERROR", "PMIX ERROR", "An error occurred in MPI_", "Fatal error in "),
            *(
                "has lost communication with",
                *("Socket recv error", "Socket send error", "connectFullMesh failed", "Unresponsive receiver"),
                *("gather failed", "llreduce failed", "roadcast failed", "peer rank"),
                "retry count exceeded",
                "coordination service: ",
                "distributed service detected",
            ),
        ),
        r"^(?:\w+\.)*HorovodInternalError|\bHorovod has been shut down"
        r"|^(?:ORTE|PRR?TE|PMIx) has lost communication with|^Socket (?:recv|send) error,"
        r"|\bGloo connectFullMesh failed\b|\bUnresponsive receiver\b"
        r"|^- \[\w+\.cc:\d+\|[\d:]+\]: (?:All(?:gather|reduce)|Broadcast) failed\."
        r"|\bFailed to (?:receive from|send to|connect to) peer rank\b"
        r"|\b(?:Transport|RNR) retry count exceeded on "
        r"|has been set to ERROR in coordination service: |\bdistributed service detected fatal errors"
        r"|^(?:Abort\(\d+\) on node .*: )?Fatal error in (?:P?MPI_|internal_)\w+: |\bUCX  ERROR \S|\bPMIX ERROR: "
        r"|\*\*\* An error occurred in MPI_\w+"
        r"|NCCL WARN NET/IB : Got (?:completion .*(?:with|error)|async event : .*(?:error|fatal))",
        (
            "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down.",
            "ORTE has lost communication with a remote daemon.",
            "PRTE has lost communication with a remote daemon.",
            "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error",
            "Socket recv error, Connection reset by peer (code: 104)",
            "- [comm.cc:310|12:58:57]: Failed to receive from peer rank 5. system error:Connection reset by peer",
            "- [allgather.cc:95|12:58:57]: Allgather failed.",
            (
                "libfabric:451707:1708520807::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 113, message: "
                "Unresponsive receiver (reachable by EFA device but handshake failed)"
            ),
            "[n4:7:0:7] ib_mlx5_log.c:171  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81)",
            (
                "F external/xla/xla/pjrt/distributed/client.h:80] Terminating process because the JAX distributed "
                "service detected fatal errors. This most likely indicates that another task died"
            ),
            "Abort(1090959) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init: Other MPI error, error stack:",
            (
                "n1:2:3 [3] transport/net_ib.cc:1246 NCCL WARN NET/IB : Got completion from peer 10.0.0.8<4> with "
                "status=12"
            ),
        ),
        ("NCCL INFO NET/IB : Using [0]mlx5_0:1/IB",),
        "horovod, common/operations.cc; NCCL, transport/net_ib.cc; PRRTE; LightGBM, socket_wrapper.hpp; gloo; XGBoost, "
        "src/collective; libfabric, prov/efa",
        "the network or a peer failed: look at the rank that ended first, and at the port that the line names",
    ),
    Pattern(
        "finished",
        LineRole.CONFIRMATION,
        None,
        (
            *("raining complete", "raining done", "raining finished", "raining is ", "raining has ", "raining was "),
            *("inished training", "inished the training", "train_runtime", "`Trainer.fit` stopped"),
        ),
        r"(?i)\btraining (?:(?:is|has|was) )?(?:been )?(?:completed?|done|finished)\b(?! (?:epoch|step|batch"
        r"|stage|phase))"
        r"|\bfinished (?:the )?training\b|'train_runtime': |^ *train_runtime +=|`Trainer\.fit` stopped: `max_",
        (
            "Training completed. Model saved to out/final",
            "INFO finished training after 41 h",
            "{'train_runtime': 147601.2, 'train_loss': 1.9}",
            "  train_runtime            = 5:12:44.10",
            "`Trainer.fit` stopped: `max_epochs=3` reached.",
        ),
        ("training completed epoch 3", "Training will be finished in 3 h", "raining data"),
        "transformers, lightning, and what people print",
    ),
)
