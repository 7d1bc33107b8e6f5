"""What logs say about memory: the card's, the box's, shared memory, and limits of a process. Data only."""

from __future__ import annotations

from holdfast.diagnosis.evidence import LineRole
from holdfast.diagnosis.logs.pattern import END, START, Pattern
from holdfast.model.verdict import FailureClass

MEMORY: tuple[Pattern, ...] = (
    Pattern(
        "vram",
        LineRole.ROOT,
        FailureClass.GPU_OUT_OF_MEMORY,
        (
            *("OutOfMemoryError", "out of memory", "OUT_OF_MEMORY", "Out of GPU memory", "MemoryAllocation"),
            "Out of memory on device",
            *(
                "CUDA error 2",
                "Cuda failure 2",
                "Cuda error 2",
                "memory for the cache blocks",
                "Dst tensor is not initialized",
                "hipErrorOutOfMemory",
                "Free memory on device",
            ),
        ),
        r"(?:\b(?:CUDA|Cuda) (?:error|failure) 2\b"
        r"|" + START + r"(?:(?:torch(?:\.cuda)?\.)?OutOfMemoryError(?=: (?:CUDA|HIP|XPU)|$)"
        r"|(?:CUDA|HIP)(?: [Ee]rror)?:? out of memory\b"
        r"|(?:ERROR: )?(?:LoadError: )?Out of GPU memory"
        r"|(?:[\w.]+\.)?OutOfMemoryError: Out of memory allocating|ValueError: No available memory for the cache blocks"
        r"|std::bad_alloc: out_of_memory: CUDA error|Out of memory on device\b"
        r"|(?:\w+ )*CUDA_ERROR_OUT_OF_MEMORY\b)"
        r"|\b(?:cudaErrorMemoryAllocation|hipErrorOutOfMemory)\b|\bDst tensor is not initialized"
        r"|\b(?:\w*C(?:uda|UDA)\w*|\w*G(?:pu|PU)\w*)::T?OutOfMemory\w*"
        r"|\bFree memory on device .{0,60}is less than desired"
        r"|\bcudaMalloc\w* failed: out of memory|Cuda Runtime \(out of memory\))"
        r"(?:.*?Tried to allocate (?P<wanted>[\d.]+ \w+))?(?:.*?GPU (?P<card>\d+))?"
        r"(?:.*?total capacity of (?P<total>[\d.]+ \w+))?"
        r"(?:.*?of which (?P<free>[\d.]+ \w+) is free)?"
        r"(?P<holders>(?:[. ]*Process \d+ has [\d.]+ \w+ memory in use)+)?",
        (
            (
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
                "total capacity of "
                "79.15 GiB of which 1.50 GiB is free. Process 4242 has 60.00 GiB memory in use."
            ),
            "[rank3]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 3; 23.69 GiB)",
            "RuntimeError: CUDA out of memory. Tried to allocate 1.17 GiB (GPU 0; 15.78 GiB total capacity)",
            "RuntimeError: CUDA error: out of memory",
            "CUDA Error: out of memory: File exists",
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 16.00 MiB.",
            "failed to alloc 2147483648 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
            "ERROR: LoadError: Out of GPU memory trying to allocate 3.725 GiB",
            "  what():  std::bad_alloc: cudaErrorMemoryAllocation: out of memory",
            (
                "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9216.00 MiB on device 0: cudaMalloc failed: "
                "out of memory"
            ),
            "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes",
            "ValueError: Free memory on device (59.3/79.2 GiB) on startup is less than desired GPU memory utilization",
            "(NCudaLib::TOutOfMemoryError) catboost/cuda/memory_pool.h:303: Error: Out of memory. Requested 77 MB",
            "Out of memory on device. To view more detail about available memory on the GPU, use 'gpuDevice()'.",
        ),
        (
            "hint: when you see `CUDA out of memory` use gradient accumulation",
            "See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF to avoid running out of memory",
            "java.lang.OutOfMemoryError: Java heap space",
            "catching torch.OutOfMemoryError is on",
            '    raise OutOfMemoryError("CUDA out of memory")',
        ),
        "torch, c10/cuda/CUDACachingAllocator.cpp",
        gotchas=("U10",),
    ),
    Pattern(
        "vram.library",
        LineRole.ROOT,
        FailureClass.GPU_OUT_OF_MEMORY,
        ("STATUS_ALLOC_FAILED",),
        r"\b(?:CUBLAS|CUDNN|CUFFT|CUSOLVER|CUSPARSE)_STATUS_ALLOC_FAILED\b",
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        ),
        ("retries: STATUS_ALLOC_FAILED is not raised",),
        "cuBLAS and cuDNN status codes",
        gotchas=("U10",),
    ),
    Pattern(
        "vram.xla",
        LineRole.ROOT,
        FailureClass.GPU_OUT_OF_MEMORY,
        ("RESOURCE_EXHAUSTED", "OOM when allocating tensor"),
        (
            r"RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate request)"
            r"|\bOOM when allocating tensor with shape(?!.*device:CPU)(?:.*device:GPU:(?P<card>\d+))?"
        ),
        (
            (
                "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "
                "allocate 8589934592 bytes."
            ),
            (
                "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating "
                "tensor with shape[64,512] "
                "and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
            ),
        ),
        (
            "grpc status RESOURCE_EXHAUSTED: Received message larger than max",
            "OOM when allocating tensor with shape[9] and type float on /job:localhost/device:CPU:0 by allocator cpu",
        ),
        "XLA and TensorFlow allocators",
        gotchas=("U10",),
    ),
    Pattern(
        "ram",
        LineRole.ROOT,
        FailureClass.OUT_OF_MEMORY,
        (
            *("MemoryError", "annot allocate memory", "bad_alloc", "can't allocate memory", "device:CPU"),
            *("Java heap space", "cannot allocate vector", "heap out of memory", "memory allocation of "),
        ),
        START
        + r"(?:(?:[\w.]+\.)?_?(?:Array)?MemoryError(?=$|:)|(?:\[Errno 12\] )?Cannot allocate memory"
        + END
        + r"|std::bad_alloc|(?:Exception in thread \S+ )?(?:java\.lang\.)?OutOfMemoryError: Java heap space"
        r"|(?:LoadError: )?OutOfMemoryError\(\)|cannot allocate vector of size|Java heap space$"
        r"|.*JavaScript heap out of memory|memory allocation of \d+ bytes failed"
        r"|OOM when allocating tensor .*device:CPU:)|\bDefaultCPUAllocator: can't allocate memory"
        r"|what\(\): +std::bad_alloc|instance of 'std::bad_alloc'",
        (
            "MemoryError",
            (
                "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 29.8 GiB for an array with "
                "shape (4000000000,)"
            ),
            "OSError: [Errno 12] Cannot allocate memory",
            "terminate called after throwing an instance of 'std::bad_alloc'",
            (
                "RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: can't "
                "allocate memory: you tried"
            ),
            "bash: fork: Cannot allocate memory",
            "java.lang.OutOfMemoryError: Java heap space",
            "Error: cannot allocate vector of size 14.9 Gb",
        ),
        ("except MemoryError is handled", "OutOfMemoryErrorHandler: ready", "the words `Cannot allocate memory` mean"),
        "errno(3) ENOMEM; numpy; c10/core/impl/alloc_cpu.cpp",
        gotchas=("U9",),
    ),
    Pattern(
        "ram.ray",
        LineRole.ROOT,
        FailureClass.OUT_OF_MEMORY,
        ("low on memory", "OutOfMemoryError"),
        r"^ray\.exceptions\.OutOfMemoryError|Task was killed due to the node running low on memory",
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",),
        ("ray.exceptions.RayTaskError(OutOfMemoryError): ray::train() (pid=7)", "the node is running low on memory"),
        "ray, python/ray/exceptions.py: the memory of the node, not of a card",
        gotchas=("U9",),
    ),
    Pattern(
        "ram.raylet",
        LineRole.CONFIRMATION,
        FailureClass.OUT_OF_MEMORY,
        ("memory pressure (OOM)",),
        r"(?<!\d)[1-9]\d* Workers \(tasks / actors\) killed due to memory pressure \(OOM\)",
        ("node_manager.cc:3277: 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed",),
        ("0 Workers (tasks / actors) killed due to memory pressure (OOM), 1 Workers crashed",),
        "ray, src/ray/raylet/node_manager.cc",
        gotchas=("U9",),
    ),
    Pattern(
        "ram.kubernetes",
        LineRole.ROOT,
        FailureClass.OUT_OF_MEMORY,
        ("OOMKilled", "low on resource: memory", "OOMKilling"),
        r"\b[Rr]eason\W{1,10}OOMKilled\b|^\S+\s+\d+/\d+\s+OOMKilled\b|low on resource: memory\b|\bOOMKilling\b",
        (
            "      Reason:       OOMKilled",
            "Message: The node was low on resource: memory. Threshold quantity: 100Mi, available: 61Mi.",
            "train-7xk2p   0/1     OOMKilled   0          3m",
        ),
        ("OOMKilled is explained in the manual",),
        "kubernetes, ContainerStateTerminated and pkg/kubelet/eviction",
    ),
    Pattern(
        "ram.slurm",
        LineRole.ROOT,
        FailureClass.OUT_OF_MEMORY,
        ("oom", "memory limit", "Out Of Memory"),
        (
            r"error: (?:Detected \d+ oom[-_ ]kill event|.*[Ee]xceeded (?:job |step )?memory limit)"
            r"|^srun: error: .*task (?P<rank>\d+).*: Out Of Memory"
        ),
        (
            (
                "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.batch. Some of your "
                "processes may have been killed"
            ),
            "[2026-09-14T17:14:38.784] error: Detected 1 oom_kill event in StepId=22035606.1. Some of the step tasks",
            "slurmstepd: error: StepId=7.batch exceeded memory limit (734003200 > 52428800), being killed",
            "srun: error: node3: task 2: Out Of Memory",
        ),
        ("watching memory.events for oom_kill events", "info: Detected 0 oom_kill events so far"),
        "Slurm, src/slurmd/slurmstepd and src/plugins/task/cgroup",
        gotchas=("SLURM4",),
    ),
    Pattern(
        "ram.daemon",
        LineRole.ROOT,
        FailureClass.OUT_OF_MEMORY,
        ("due to memory", "oom_score", "Out of memory: Killed", "Memory cgroup out of memory"),
        r"systemd-oomd(?:\[\d+\])?: (?:Killed"
        r"|Marked) (?P<group>\S+) (?:for killing )?due to memory (?:pressure|used)"
        r"|earlyoom.*sending SIG(?:TERM|KILL) to process (?P<pid>\d+)"
        r"|^sending SIG(?:TERM|KILL) to process \d+ uid \d+ \".*oom_score"
        r"|\b(?:Memory cgroup out of memory|Out of memory): Killed process (?P<victim>\d+)",
        (
            (
                "systemd-oomd[612]: Killed /user.slice/user-1000.slice due to memory pressure for "
                "/user.slice being 56.11% > 50.00%"
            ),
            (
                'earlyoom[77]: sending SIGTERM to process 4242 uid 1000 "python": oom_score 900, '
                "oom_score_adj 0, VmRSS 30000 MiB"
            ),
            "[12345.678] Memory cgroup out of memory: Killed process 4242 (python) total-vm:9kB, anon-rss:8kB",
        ),
        ("systemd-oomd is active, no memory pressure", "oom_score of this process is 12"),
        "systemd src/oom/oomd-manager.c; earlyoom kill.c; Linux mm/oom_kill.c",
        "a daemon or the kernel freed memory by killing: use fewer workers, stagger starts, or raise the memory limit",
        ("U9",),
    ),
    Pattern(
        "ram.limit",
        LineRole.ROOT,
        FailureClass.OUT_OF_MEMORY,
        (
            *(
                "TERM_MEMLIMIT",
                "job killed: ",
                "emory limit",
                "h_vmem limit",
                "emory usage",
                "emory request",
                "ut-of-memory",
                "oom-kill'",
            ),
            *("the OOM killer", "OOMKilled", "request_memory"),
        ),
        r"\bTERM_MEMLIMIT\b|\bjob killed: v?mem\b.*\bexceeded|\bresult 'oom-kill'|\bkilled by the OOM killer"
        r"|\bOOMKilled \(|\"OOMKilled\": ?true|\bran out-of-memory and exited\b"
        r"|\b(?:gone over|running beyond|killed .{0,40}\bexceed\w+) (?:\S+ ){0,3}memory (?:limit|usage|request)"
        r"|\bexceeded (?:hard |soft |job |the )*(?:memory|h_vmem|h_rss) limit\b|\bmemory usage exceeded\b"
        r"|\bkilled due to memory usage",
        (
            "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
            "=>> PBS: job killed: mem 68000kb exceeded limit 65536kb",
            "Job has gone over memory limit of 4096 megabytes. Peak usage: 4100 megabytes.",
            "Reason: Container killed by YARN for exceeding memory limits. 8.2 GB of 8 GB physical memory used.",
            "OutOfMemoryError: Container killed due to memory usage",
            "systemd[1]: run-r1.scope: Failed with result 'oom-kill'.",
            "main: OOMKilled (exit code 137)",
        ),
        ("memory limit: 8 GiB", "GPU memory usage: 31 %", "the OOM killer is enabled"),
        "LSF, PBS, HTCondor, YARN, AWS Batch, Vertex AI, systemd, Argo: what each says of a job over its memory",
        gotchas=("U9",),
    ),
    Pattern(
        "worker.killed",
        LineRole.CONFIRMATION,
        FailureClass.OUT_OF_MEMORY,
        (
            *("killed by signal: Killed", "WorkerLostError", "BrokenProcessPool", "Killed signal terminated program"),
            "KilledWorker",
        ),
        r"DataLoader worker \(pid(?:\(s\))? (?P<pid>[\d, ]+)\) is killed by signal: Killed"
        r"|^(?:\w+\.)*(?:BrokenProcessPool|WorkerLostError|KilledWorker): "
        r"|fatal error: Killed signal terminated program",
        (
            "RuntimeError: DataLoader worker (pid 3123) is killed by signal: Killed.",
            "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly",
            "g++: fatal error: Killed signal terminated program cc1plus",
        ),
        (
            "RuntimeError: DataLoader worker (pid 3123) is killed by signal: Terminated.",
            "    raise BrokenProcessPool('x')",
        ),
        "torch/utils/data/_utils/signal_handling.py; concurrent/futures/process.py",
        gotchas=("U9",),
    ),
    Pattern(
        "worker.lost",
        LineRole.ROOT,
        FailureClass.KILLED,
        ("did not deliver ",),
        r"\bscheduled cores? [\d, ]+ did not deliver (?:a )?results?\b",
        (
            "  scheduled cores 2, 5, 7 did not deliver results, all values of the jobs will be affected",
            "  scheduled core 2 did not deliver a result, all values of the job will be affected",
        ),
        ("the vendor did not deliver results",),
        "R, parallel, mclapply.R",
        "a forked worker was killed or crashed, mostly for want of memory: fewer mc.cores, or more memory",
    ),
    Pattern(
        "killed",
        LineRole.CONFIRMATION,
        None,
        ("Killed", "killed", "SIGKILL", "signal 9"),
        r"^(?:\S+: line \d+: +\d+ |zsh: )?[Kk]illed(?:$| {2,}\S| \(core|  )"
        r"|died with <Signals\.SIGKILL: 9>|Signal 9 \(SIGKILL\) received by PID (?P<pid>\d+)"
        r"|exited on signal 9 \(Killed\)|^srun: error: .*task (?P<rank>\d+): Killed",
        (
            "Killed",
            "./train.sh: line 3: 12345 Killed                  python train.py",
            "subprocess.CalledProcessError: Command '['python']' died with <Signals.SIGKILL: 9>.",
            "mpirun noticed that process rank 0 with PID 0 on node n1 exited on signal 9 (Killed).",
            "srun: error: n1: task 3: Killed",
        ),
        ("Killed 3 stale workers", "the old server was killed", "handler for SIGKILL cannot be installed"),
        "bash jobs.c; subprocess; Open MPI",
    ),
    Pattern(
        "shm",
        LineRole.ROOT,
        FailureClass.SHARED_MEMORY,
        (
            *("shared memory", "/dev/shm", "signal: Bus error", "torch_shm_manager"),  # noqa: S108 - words of a log
            *("</torch_", "Errno 28]", "posix_fallocate"),
        ),
        r"\b[Bb]us error.*shared memory"
        r"|[Uu]nable to (?:open|write to|allocate|mmap|resize|create) (?:file <.*?>|.{0,40}?)shared memory"
        r"(?!.*Too many open files)"
        r"|insufficient shared memory \(shm\)|DataLoader worker .*killed by signal: Bus error"
        r"|No space left on device.*/dev/shm/"
        r"|NCCL WARN Call to posix_fallocate failed"
        r"|Error while creating shared memory segment (?P<path>/dev/shm/\S+)"
        r"|/dev/shm/\S*.*: No space left on device|torch_shm_manager.*(?:No space|error)"
        r"|\[Errno 28\] No space left on device: '/(?:psm_|torch_|sem\.|mp-)\S*'"
        r"|unable to \w+(?: \w+)* </?torch_\w+>.*No space left",
        (
            (
                "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient "
                "shared memory (shm)."
            ),
            "RuntimeError: unable to open shared memory object </torch_29919_1396> in read-write mode",
            (
                "RuntimeError: unable to write to file </torch_18_1>: No space left on device (28) "
                "insufficient shared memory (shm)"
            ),
            (
                "RuntimeError: DataLoader worker (pid 35) is killed by signal: Bus error. It is possible "
                "that dataloader's workers"
            ),
            (
                "node:1:2 [0] misc/shmutils.cc:72 NCCL WARN Error while creating shared memory segment "
                "/dev/shm/nccl-JpBU (size 9637888)"
            ),
            "n1:78:160 [2] include/shm.h:42 NCCL WARN Call to posix_fallocate failed : No space left on device",
            "OSError: [Errno 28] No space left on device: '/dev/shm/cache.bin'",
            "OSError: [Errno 28] No space left on device: '/psm_4f22'",
            "RuntimeError: unable to write to file </torch_18_1>: No space left on device (28)",
        ),
        (
            "OSError: [Errno 28] No space left on device: '/data/psm_4f22'",
            "using shared memory transport",
            "/dev/shm has 64 GB",  # noqa: S108 - words of a log
            "shared memory (shm) limit is 8g",
            "RuntimeError: unable to open shared memory object </torch_6_1> in read-write mode: Too many open files",
        ),
        "torch DataLoader; NCCL src/misc/shmutils.cc",
    ),
    Pattern(
        "shm.semaphore",
        LineRole.ROOT,
        FailureClass.SHARED_MEMORY,
        ("SemLock(", "SharedMemory("),
        r"\b(?:SemLock|SharedMemory)\((?s:.{0,400}?)\n[^\n]*\[Errno 28\]",
        (
            (
                "    sl = self._semlock = _multiprocessing.SemLock(\n         ^^^^\nOSError: [Errno 28] No space "
                "left on device"
            ),
            (
                "    shm = SharedMemory(create=True, size=9)\n  File x\n    os.posix_fallocate(fd, 0, 9)\nOSError: "
                "[Errno 28] No"
            ),
        ),
        ("    sl = SemLock(kind)\nPermissionError: [Errno 13] Permission denied",),
        "CPython, Modules/_multiprocessing: semaphores lie in shared memory, no disk is full",
        lines=12,
    ),
    Pattern(
        "bus_error",
        LineRole.CONFIRMATION,
        FailureClass.SHARED_MEMORY,
        ("Bus error",),
        r"^(?:\S+: line \d+: +\d+ )?Bus error\b|Fatal Python error: Bus error",
        (
            "Bus error (core dumped)",
            "Fatal Python error: Bus error",
            "run.sh: line 2:   77 Bus error               python x.py",
        ),
        ("no Bus error was seen",),
        "signal(7) SIGBUS",
    ),
    Pattern(
        "limit.files",
        LineRole.ROOT,
        FailureClass.RESOURCE_LIMIT,
        ("Too many open files", "Errno 24]", "ancdata"),
        START + r"(?:\[Errno 24\]|Too many open files" + END + r"|received \d+ items of ancdata)",
        (
            "OSError: [Errno 24] Too many open files: '/data/x'",
            "RuntimeError: received 0 items of ancdata",
            "accept4: Too many open files",
        ),
        ("raise ulimit -n to avoid 'Too many open files'", "[Errno 240] other"),
        "errno(3) EMFILE; torch.multiprocessing file_descriptor strategy",
        "have fewer open at once (fewer workers), or raise the limit: holdfast restart RUN --limit-open-files 65536",
    ),
    Pattern(
        "limit.locked",
        LineRole.ROOT,
        FailureClass.RESOURCE_LIMIT,
        ("locked memory", "memlock"),
        r"(?i)\b(?:set|increase|raise|check) (?:the |your )?(?:max(?:imum)? )?(?:locked memory|memlock)\b"
        r"|\bmemlock (?:limit )?(?:is )?too (?:low|small)\b",
        (
            (
                "ib_md.c:340  UCX  ERROR ibv_reg_mr(length=39845888) failed: Cannot allocate memory. Please set max "
                "locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)"
            ),
        ),
        ("max locked memory is unlimited", "memlock: unlimited"),
        "UCX, uct/ib/base/ib_md.c",
        "ask for `ulimit -l unlimited` where the job starts (limits.conf, Slurm's PropagateResourceLimits)",
    ),
    Pattern(
        "limit.watches",
        LineRole.ROOT,
        FailureClass.RESOURCE_LIMIT,
        ("inotify", "file watchers"),
        r"inotify (?:watch|instance) limit reached|limit for number of file watchers reached"
        r"|(?:\[Errno (?:24|28)\]|ENOSPC).*inotify",
        (
            "OSError: [Errno 28] inotify watch limit reached",
            "Error: ENOSPC: System limit for number of file watchers reached, watch '/x'",
        ),
        ("inotify is used to watch 3 files",),
        "inotify(7), ENOSPC: no disk is full",
        "raise fs.inotify.max_user_watches (root), or watch fewer files",
    ),
    Pattern(
        "limit.processes",
        LineRole.ROOT,
        FailureClass.RESOURCE_LIMIT,
        ("os.fork()", "popen_fork.py", "fork_exec("),
        r"\b(?:os\.fork\(\)|popen_fork\.py"
        r"|fork_exec\()(?s:.{0,300}?)\n[^\n]*\[Errno 11\] Resource temporarily unavailable",
        (
            (
                "    self.pid = os.fork()\n               ^^^^^^^^^\nBlockingIOError: [Errno 11] Resource "
                "temporarily unavailable"
            ),
        ),
        ("    self.pid = os.fork()\nOSError: [Errno 12] Cannot allocate memory",),
        "fork(2), EAGAIN",
        "have fewer workers, or raise the limit that it met: limits.tasks where the job has one, else `ulimit "
        "-u`, or the "
        "pids.max of what it runs in",
        ("U40",),
        lines=8,
    ),
    Pattern(
        "limit.threads",
        LineRole.ROOT,
        FailureClass.RESOURCE_LIMIT,
        ("start new thread", "Thread creation failed", "pthread_create failed", "Resource temporarily unavailable"),
        START + r"(?:can't start new thread|(?:libgomp: )?Thread creation failed)|\bpthread_create failed"
        r"|\bfork: (?:retry: )?Resource temporarily unavailable",
        (
            "RuntimeError: can't start new thread",
            "libgomp: Thread creation failed: Resource temporarily unavailable",
            "OpenBLAS blas_thread_init: pthread_create failed for thread 63 of 64: Resource temporarily unavailable",
            "bash: fork: retry: Resource temporarily unavailable",
        ),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable",),
        "CPython Modules/_threadmodule.c; libgomp; OpenBLAS",
        "have fewer threads (OMP_NUM_THREADS, fewer workers), or raise the limit that it met: limits.tasks "
        "where the job "
        "has one, else `ulimit -u`, or the pids.max of what it runs in",
        ("U40",),
    ),
    Pattern(
        "limit.size",
        LineRole.ROOT,
        FailureClass.RESOURCE_LIMIT,
        ("Errno 27]", "File size limit exceeded", "File too large", "time limit exceeded"),
        START
        + (
            r"(?:\[Errno 27\] File too large|File size limit exceeded|CPU time limit exceeded"
            r"|(?:\S+: line \d+: +\d+ )?File size limit)"
        ),
        (
            "OSError: [Errno 27] File too large",
            "File size limit exceeded (core dumped)",
            "CPU time limit exceeded (core dumped)",
        ),
        ("upload refused: File too large for preview",),
        "errno(3) EFBIG; signal(7) SIGXFSZ, SIGXCPU",
        "raise it in a shell (`ulimit -f` is the size of a file, -t the CPU seconds), and restart from that shell",
    ),
)
