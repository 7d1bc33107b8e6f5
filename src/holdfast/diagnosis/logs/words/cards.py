"""What logs say about cards, their driver, and the numbers of a training. Data only."""

from __future__ import annotations

from holdfast.diagnosis.evidence import LineRole
from holdfast.diagnosis.logs.pattern import START, Pattern
from holdfast.model.verdict import FailureClass

_CUDA = START + (
    r"(?:CUDA error: |CUDA runtime error(?: \(\d+\))?: |CUDA driver error: "
    r"|cuda runtime error \(\d+\) : |HIP error: )?"
)

_SPOKEN = ("CUDA error", "Cuda error", "Cuda driver error", "CUDA driver error", "Cuda failure", "CUDA failure")


def _numbered(codes: str) -> str:
    """An error of CUDA by its number. Source: CUDA runtime API, cudaError; driver API, CUresult."""
    return rf"\b(?:CUDA|Cuda) (?:driver |runtime )?(?:error|failure)(?: code)?[ :(]{{1,3}}(?:{codes})\b|"


CARDS: tuple[Pattern, ...] = (
    Pattern(
        "card.no_kernel",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        (
            *_SPOKEN,
            *("no kernel image is available", "is not compatible with the current PyTorch", "NO_BINARY_FOR_GPU"),
            *("NoKernelImage", "NoBinaryForGpu", "invalid device function", "ptxas fatal", "nvcc fatal"),
        ),
        _numbered("98|209") + r"\b(?:CUDA_ERROR_NO_BINARY_FOR_GPU|cudaErrorNoKernelImageForDevice"
        r"|hipErrorNoBinaryForGpu)\b|"
        + _CUDA
        + r"invalid device function\b|"
        + _CUDA
        + r"no kernel image is available for execution|with CUDA capability (?P<arch>sm_\d+) is not compatible"
        r"|^(?:ptxas|nvcc) fatal *: +(?:Value '(?:sm|compute)_|Unsupported (?:gpu arch|\.version|\.target))",
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            (
                "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current "
                "PyTorch installation."
            ),
            "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
            "nvcc fatal   : Unsupported gpu architecture 'compute_120'",
        ),
        ("checking whether no kernel image is available", "ptxas fatal   : Unresolved extern function 'f'"),
        "CUDA runtime, cudaErrorNoKernelImageForDevice",
        (
            "this build of the framework has no code for this card: install one whose arch list has it "
            "(torch.cuda.get_arch_list())"
        ),
        ("U28",),
    ),
    Pattern(
        "card.driver_old",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        (
            *_SPOKEN,
            "driver version is insufficient",
            "driver on your system is too old",
            "forward compatibility was attempted",
            *("PTX was compiled with an unsupported", "InsufficientDriver", "UnsupportedPtx", "UNSUPPORTED_PTX"),
            *("COMPAT_NOT_SUPPORTED", "CompatNotSupported"),
        ),
        _numbered("35|218|222|804") + r"\b(?:cudaError(?:InsufficientDriver|UnsupportedPtxVersion"
        r"|CompatNotSupportedOnDevice)"
        r"|CUDA_ERROR_(?:UNSUPPORTED_PTX_VERSION|COMPAT_NOT_SUPPORTED_ON_DEVICE))\b"
        r"|CUDA driver version is insufficient for CUDA runtime version"
        r"|NVIDIA driver on your system is too old(?: \(found version (?P<found>\d+)\))?"
        r"|forward compatibility was attempted on non supported HW"
        r"|provided PTX was compiled with an unsupported toolchain",
        (
            "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version",
            (
                "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please "
                "update your GPU driver"
            ),
            "Error 804: forward compatibility was attempted on non supported HW",
            "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
        ),
        ("your driver version is sufficient",),
        "CUDA runtime; torch/csrc/cuda",
        "the driver is older than the framework's CUDA: install a build for an older CUDA, or ask for a newer driver",
        ("U28",),
    ),
    Pattern(
        "card.build_mismatch",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        ("used to compile PyTorch", "CUDA_HOME environment variable is not set"),
        r"detected CUDA version \([\d.]+\) mismatches the version that was used to compile PyTorch"
        r"|^(?:OSError|EnvironmentError): CUDA_HOME environment variable is not set",
        (
            (
                "RuntimeError: The detected CUDA version (11.8) mismatches the version that was used to compile "
                "PyTorch (12.1). Please make sure to use the same CUDA versions."
            ),
            "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
        ),
        (
            (
                "UserWarning: The detected CUDA version (12.2) has a minor version mismatch with the version that was "
                "used to compile PyTorch (12.1). Most likely this shouldn't be a problem."
            ),
        ),
        "torch/utils/cpp_extension.py",
        "an extension is compiled with another CUDA than torch was: install the toolkit of torch.version.cuda, or "
        "a torch for this one",
        ("U28",),
    ),
    Pattern(
        "card.driver_mismatch",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        (
            *_SPOKEN,
            "ersion mismatch",
            "unsupported display driver",
            "SYSTEM_DRIVER_MISMATCH",
            "ErrorSystemDriverMismatch",
        ),
        _numbered("803") + r"\bCUDA_ERROR_SYSTEM_DRIVER_MISMATCH\b|\bcudaErrorSystemDriverMismatch\b"
        r"|NVML.*[Dd]river/library version mismatch"
        r"|system has unsupported display driver / cuda driver combination",
        (
            "Failed to initialize NVML: Driver/library version mismatch",
            "RuntimeError: NVML: Driver/library version mismatch",
            "failed call to cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        ),
        ("protobuf: version mismatch is ignored",),
        "NVML return code 18",
        "the driver was updated under running kernel modules: the box must be rebooted or the modules loaded again",
        ("U28",),
    ),
    Pattern(
        "card.fabric",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        (*_SPOKEN, "SYSTEM_NOT_READY", "ErrorSystemNotReady", "system not yet initialized"),
        _numbered("802")
        + r"\bCUDA_ERROR_SYSTEM_NOT_READY\b|\bcudaErrorSystemNotReady\b|\bsystem not yet initialized\b",
        (
            (
                "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions "
                "before calling "
                "NumCudaDevices() that might have already set an error? Error 802: system not yet initialized"
            ),
            "CUDA error 802: system not yet initialized",
        ),
        ("the inference system is not yet initialized",),
        "CUDA runtime, cudaErrorSystemNotReady; NVIDIA, Fabric Manager User Guide",
        "the driver says that the system is not ready for CUDA: on a box with NVSwitch the fabric manager must "
        "run, in the "
        "very version of the driver (systemctl status nvidia-fabricmanager; holdfast doctor looks); a container or a "
        "rented box cannot start it: have the provider do so, or take another box",
        ("U28",),
    ),
    Pattern(
        "card.busy",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        (*_SPOKEN, "busy or unavailable", "CUDA_ERROR_DEVICE_UNAVAILABLE", "cudaErrorDevicesUnavailable"),
        _numbered("46") + r"\bCUDA_ERROR_DEVICE_UNAVAILABLE\b|\bcudaErrorDevicesUnavailable\b"
        r"|\bCUDA-capable device(?:s are|\(s\) is/are) busy or unavailable",
        (
            "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
            "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        ),
        ("all workers are busy or unavailable",),
        "CUDA runtime, cudaErrorDevicesUnavailable: exclusive or prohibited compute mode, no room, or a stuck kernel",
        "the card takes no further process: see who is on it (holdfast gpus) and its compute mode (nvidia-smi -q -d "
        "COMPUTE: one in Exclusive_Process takes one process, so give each rank a card of its own, or use "
        "MPS); with nobody on it, "
        "look for a Xid of it (dmesg) and use another card",
        ("U28",),
    ),
    Pattern(
        "card.unknown",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        (*_SPOKEN, "HIP error: unknown error", "CUDA_ERROR_UNKNOWN", "cudaErrorUnknown"),
        _numbered("30|999")
        + r"\bCUDA_ERROR_UNKNOWN\b|\bcudaErrorUnknown\b|"
        + START
        + r"(?:CUDA|HIP) (?:driver )?error: unknown error\b",
        (
            "RuntimeError: CUDA error: unknown error",
            "failed call to cuInit: CUDA_ERROR_UNKNOWN: unknown error",
        ),
        ("CUDA error: none, unknown errors: 0",),
        "CUDA runtime, cudaErrorUnknown: an unknown internal error",
        "the driver says no more than that it failed: see whether the kernel's log has a Xid of this card "
        "(dmesg), whether "
        "another program can use it (nvidia-smi, holdfast doctor) and whether the driver was changed since the "
        "box came up; "
        "then run it again, on another card if that is the one",
        passing=True,
        unsure=True,
    ),
    Pattern(
        "card.none",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        (
            *_SPOKEN,
            "CUDA-capable device",
            "No CUDA GPUs are available",
            "Found no NVIDIA driver",
            "not compiled with CUDA enabled",
            "invalid device ordinal",
            "initialize backend '",
            "could not select device driver",
            "No supported gpu backend",
            *("No supported GPU", "CUDA_ERROR_", "cudaError", "hipErrorNoDevice"),
        ),
        _numbered("100|101") + r"\b(?:CUDA_ERROR_(?:NO_DEVICE|INVALID_DEVICE)"
        r"|cudaError(?:NoDevice|InvalidDevice)|hipErrorNoDevice)\b|\bno CUDA-capable device is detected"
        r"|^RuntimeError: No CUDA GPUs are available|^RuntimeError: Found no NVIDIA driver on your system"
        r"|^AssertionError: Torch not compiled with CUDA enabled|CUDA error: invalid device ordinal"
        r"|^RuntimeError: Unable to initialize backend '\w+'"
        r"|could not select device driver \"\" with capabilities: \[\[gpu\]\]"
        r"|MisconfigurationException: No supported gpu backend",
        (
            "RuntimeError: CUDA error: no CUDA-capable device is detected",
            "RuntimeError: No CUDA GPUs are available",
            "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
            "AssertionError: Torch not compiled with CUDA enabled",
            "RuntimeError: CUDA error: invalid device ordinal",
            "RuntimeError: Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU devices.",
            'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
            "lightning.fabric.utilities.exceptions.MisconfigurationException: No supported gpu backend found!",
        ),
        (
            "UserWarning: CUDA initialization: Found no NVIDIA driver on your system.",
            "found 1 CUDA-capable device",
            "if No CUDA GPUs are available use cpu",
        ),
        "CUDA runtime; torch/cuda/__init__.py; JAX xla_bridge.py",
        (
            "the job sees no usable card: compare CUDA_VISIBLE_DEVICES, the driver (holdfast gpus) and "
            "the framework's build"
        ),
        ("U28", "U31"),
    ),
    Pattern(
        "card.cpu_fallback",
        LineRole.CONFIRMATION,
        FailureClass.ENVIRONMENT,
        (
            "alling back to CPU",
            "alling back to cpu",
            "Found no NVIDIA driver",
            "Skipping registering GPU",
            "ould not find cuda drivers",
            "CUDAExecutionProvider",
            "CUDA is not available",
            "GPU will not be used",
            "CUDA initialization:",
        ),
        r"\b[Ff]alling back to (?:CPU|cpu)\b|Found no NVIDIA driver on your system"
        r"|Skipping registering GPU devices|[Cc]ould not find cuda drivers"
        r"|Failed to create CUDAExecutionProvider"
        r"|User provided device_type of 'cuda', but CUDA is not available|GPU will not be used"
        r"|UserWarning: CUDA initialization: ",
        (
            "CUDA-enabled jaxlib is not installed. Falling back to cpu.",
            "WARNING: no GPU, falling back to CPU",
            (
                "W tensorflow/core/common_runtime/gpu/gpu_device.cc:1956] Cannot dlopen some GPU "
                "libraries. Skipping registering GPU devices..."
            ),
            "I tsl/cuda/cudart_stub.cc:28] Could not find cuda drivers on your machine, GPU will not be used.",
            "UserWarning: User provided device_type of 'cuda', but CUDA is not available. Disabling",
            "[W:onnxruntime] Failed to create CUDAExecutionProvider. Require cuDNN 9.*",
            "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount().",
        ),
        (
            "providers: CUDAExecutionProvider, CPUExecutionProvider",
            "torch.cuda.is_available() is True, not Falling back",
        ),
        "torch/cuda/__init__.py; TensorFlow gpu_device.cc; JAX xla_bridge.py; ONNX Runtime",
        "the job runs on the processor: make the card visible, or install a build with CUDA",
        ("U31", "K8S6"),
    ),
    Pattern(
        "card.ecc",
        LineRole.ROOT,
        FailureClass.HARDWARE,
        (*_SPOKEN, "ncorrectable ECC", "uncorrectable NVLink", "_UNCORRECTABLE", "Uncorrectable"),
        (
            _numbered("214|220") + r"\b[Uu]ncorrectable (?:ECC|NVLink) error (?:was |detected )?(?:encountered|during)"
            r"|CUDA_ERROR_(?:ECC|NVLINK)_UNCORRECTABLE|\bcudaError(?:ECC|Nvlink)Uncorrectable\b"
        ),
        (
            "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            "CUDA error: uncorrectable NVLink error detected during the execution",
        ),
        ("ECC: 0 uncorrectable ECC errors",),
        "CUDA runtime, cudaErrorECCUncorrectable",
        gotchas=("U22",),
    ),
    Pattern(
        "card.health",
        LineRole.ROOT,
        FailureClass.HARDWARE,
        ("Remapping Failure", "emapper", "ealth check", "ealthcheck"),
        r"\bRemapping Failure Occurred *: *Yes\b|\bRow [Rr]emapper\b.*\bPending *: *Yes\b"
        r"|\bGPUs? ?\d*\b.{0,60}\b(?:fail(?:s|ed)|did not pass) (?:the |its |a )?(?:\w+ )?[Hh]ealth ?check"
        r"|\b[Hh]ealth ?check (?:of |for |on )?GPU ?\d+\b.{0,40}\bfailed\b",
        (
            "GPU 3 (PCI 0000:5D:00.0) Row remapper: Correctable 0, Pending: Yes, Remapping Failure Occurred: Yes",
            "[prolog] GPU 3 fails health check, refusing to launch ranks",
        ),
        (
            "        Remapping Failure Occurred      : No",
            "GPU 3 passed the health check",
            "health check of the server failed",
        ),
        "nvidia-smi -q -d ROW_REMAPPER; what sites print in a prolog",
        gotchas=("U22",),
    ),
    Pattern(
        "card.lost",
        LineRole.ROOT,
        FailureClass.HARDWARE,
        (
            "GPU is lost",
            "fallen off the bus",
            "Unable to determine the device handle",
            "hardware stack error",
            "GPU requires reset",
            *("Xid", "HardwareStackError", "HARDWARE_STACK_ERROR"),
        ),
        r"\bGPU is lost\b|GPU has fallen off the bus"
        r"|Unable to determine the device handle for GPU ?(?P<pci>[0-9A-Fa-f:.]+)"
        r"|CUDA error: hardware stack error|\bcudaErrorHardwareStackError\b|\bCUDA_ERROR_HARDWARE_STACK_ERROR\b"
        r"|GPU requires reset"
        r"|NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)[^)]*\): (?P<xid>\d{1,3})\b",
        (
            (
                "Unable to determine the device handle for GPU 0000:3b:00.0: GPU is lost.  Reboot the "
                "system to recover this GPU"
            ),
            "RuntimeError: CUDA error: hardware stack error",
            "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.",
        ),
        ("the shuffled bus is lost", "checking Xid counters: none"),
        "NVML return codes 15 and 16; CUDA runtime",
        gotchas=("U22",),
    ),
    Pattern(
        "card.assert",
        LineRole.ROOT,
        FailureClass.BUG,
        (*_SPOKEN, "device-side assert", "` failed.", "cudaErrorAssert", "CUDA_ERROR_ASSERT"),
        (
            _numbered("59|710")
            + r"\b(?:cudaErrorAssert|CUDA_ERROR_ASSERT)\b|"
            + START
            + r"CUDA (?:error|runtime error.{,9}): device-side assert triggered"
            r"|\.cu:\d+: .*: block: \[.*\], thread: \[.*\] Assertion `(?P<assertion>.+)` failed"
        ),
        (
            "RuntimeError: CUDA error: device-side assert triggered",
            (
                "ScatterGatherKernel.cu:144: operator(): block: [0,0,0], thread: [1,0,0] Assertion "
                "`idx_dim >= 0 && idx_dim < index_size` failed."
            ),
        ),
        ("Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",),
        "CUDA runtime, cudaErrorAssert",
        "an index or label lies outside its range: run one step with CUDA_LAUNCH_BLOCKING=1 or on the CPU to see which",
    ),
    Pattern(
        "card.fault",
        LineRole.ROOT,
        FailureClass.BUG,
        (
            *_SPOKEN,
            "illegal memory access",
            "unspecified launch failure",
            "misaligned address",
            "illegal instruction was encountered",
            "invalid configuration argument",
            *("CUDA_ERROR_", "cudaError", "hipError", "Memory access fault by GPU", "HIP error", "HSA_STATUS_ERROR_"),
        ),
        _numbered("77|700|715|716|718|719") + r"^Memory access fault by GPU node"
        r"|\bHSA_STATUS_ERROR_(?:MEMORY_APERTURE_VIOLATION|MEMORY_FAULT|ILLEGAL_INSTRUCTION)\b|\b(?:cuda|hip)Error(?:IllegalAddress"
        r"|LaunchFailure|MisalignedAddress"
        r"|IllegalInstruction|InvalidPc)\b|"
        + START
        + r"(?:CUDA|HIP) (?:error|runtime error.{,9}): (?:an illegal memory access was encountered"
        r"|unspecified launch failure|misaligned address|an illegal instruction was encountered"
        r"|invalid configuration argument)|CUDA_ERROR_(?:ILLEGAL_ADDRESS|LAUNCH_FAILED|MISALIGNED_ADDRESS"
        r"|ILLEGAL_INSTRUCTION)\b",
        (
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "torch.AcceleratorError: CUDA error: unspecified launch failure",
            "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered",
            "numba.cuda.cudadrv.driver.CudaAPIError: [719] Call to cuMemcpyDtoH results in CUDA_ERROR_LAUNCH_FAILED",
            "Memory access fault by GPU node-1 (Agent handle: 0x55) on address 0x7f. Reason: Page not present.",
            "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory beyond its aperture.",
        ),
        ("fixed an illegal memory access in the loader",),
        "CUDA runtime, cudaErrorIllegalAddress, cudaErrorLaunchFailure",
        (
            "mostly a kernel's own bug; if the kernel log has a Xid other than 13, 31 or 45 for this "
            "card, suspect the card"
        ),
    ),
    Pattern(
        "card.handle",
        LineRole.ROOT,
        FailureClass.GPU_OUT_OF_MEMORY,
        ("_STATUS_NOT_INITIALIZED",),
        r"\b(?:CUDNN|CUBLAS|CUFFT|CUSOLVER|CUSPARSE)_STATUS_NOT_INITIALIZED\b",
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
            "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        ),
        ("returns _STATUS_NOT_INITIALIZED",),
        "cuBLAS and cuDNN status codes: a handle takes memory of the card, and is made late; torch, "
        "ATen/cuda/CUDABlas.cpp",
        "a library of the card could not begin. See first whether its memory was full (holdfast gpus; a smaller shape "
        "shows it), then whether an index or label lies outside its range (run one step with "
        "CUDA_LAUNCH_BLOCKING=1, or on "
        "the CPU); then whether driver, CUDA and framework fit (holdfast doctor)",
        ("U10",),
        passing=True,
        unsure=True,
    ),
    Pattern(
        "card.execution",
        LineRole.ROOT,
        FailureClass.BUG,
        ("_STATUS_EXECUTION_FAILED",),
        r"\b(?:CUDNN|CUBLAS|CUFFT|CUSOLVER|CUSPARSE)_STATUS_EXECUTION_FAILED\b",
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`",
            "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        ),
        ("returns _STATUS_EXECUTION_FAILED",),
        "cuBLAS and cuDNN status codes: the program for the card could not be launched, for several reasons",
        "what failed on the card was mostly begun before this line: run one step with CUDA_LAUNCH_BLOCKING=1 "
        "to see it (an "
        "index outside its range, memory that ran out); if that goes well look for a Xid of the card (dmesg), "
        "try another "
        "card, and see whether driver, CUDA and framework fit (holdfast doctor)",
        passing=True,
        unsure=True,
    ),
    Pattern(
        "card.library",
        LineRole.CONFIRMATION,
        None,
        ("_STATUS_", "cuDNN error", "CUDNN_BACKEND"),
        r"\b(?:CUDNN|CUBLAS|CUFFT|CUSOLVER)_STATUS_(?P<status>INTERNAL_ERROR|NOT_SUPPORTED|ARCH_MISMATCH)\b",
        (
            "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED",
            "RuntimeError: CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasCreate(handle)`",
        ),
        ("returns CUDNN_STATUS_SUCCESS",),
        "cuDNN and cuBLAS status codes: often memory that ran out, or an index error before",
    ),
    Pattern(
        "nonfinite",
        LineRole.ROOT,
        FailureClass.DIVERGED,
        ("nan", "NaN", "NAN", "=inf", "= inf", ": inf", ":inf", "s inf", "(inf", "=Inf", ": Inf", "-inf", "norm inf"),
        (
            r"(?i:\b(?P<what>(?:train[_ /]?|val[_ /]?|total[_ /]?)?(?:loss|grad(?:ient)?(?:_norm)?|ppl"
            r"|perplexity))\b['\"]?\s*(?:\bis\b|[:=])?\s*['\"]?(?:tensor\()?[-+]?(?:nan|inf(?:inity)?)\b)"
        ),
        (
            "step 100 loss nan",
            "{'loss': nan, 'grad_norm': nan, 'learning_rate': 0.0}",
            "Loss is nan, stopping training",
            "epoch 3 train_loss=inf",
            "loss: tensor(nan, device='cuda:0', grad_fn=<NllLossBackward0>)",
            "grad_norm = inf",
        ),
        (
            "loss information: see below",
            "nanmean of the loss: 0.1",
            "loss 0.31 nan_count=0",
            "INFO loss=0.2",
            "loss inference took 2 s",
        ),
        "metrics as frameworks print them",
        passing=True,
    ),
    Pattern(
        "diverged",
        LineRole.ROOT,
        FailureClass.DIVERGED,
        (
            *("infinite or NaN", "loss scale", "Invalid loss", "values became NaN", "Found NaN", "non-finite"),
            *("found NaN in local", "found Inf in local"),
        ),
        r"(?:\bLoss (?:became infinite or NaN at iteration=(?P<step>\d+)|is infinite or NaN)"
        r"|\bMinimum loss scale reached|\b[Cc]urrent loss scale already at minimum"
        r"|(?:\b|(?<=\d))Batch (?P<batch>\d+): Invalid loss, terminating training"
        r"|\bRank \d+: found (?:NaN|Inf) in local \w+"
        r"|\bThe total norm .{1,60} for gradients .{1,60} is non-finite)",
        (
            "FloatingPointError: Loss became infinite or NaN at iteration=2313!",
            "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.",
            "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
            "Batch 12: Invalid loss, terminating training",
            "AssertionError: Rank 19: found NaN in local forward loss calculation. Device: 3, node: n4",
            (
                "RuntimeError: The total norm of order 2.0 for gradients from `parameters` is "
                "non-finite, so it cannot be clipped."
            ),
        ),
        ("Gradient overflow. Skipping step, loss scale 65536", "non-finite check is on"),
        "detectron2; fairseq; DeepSpeed; Keras TerminateOnNaN; torch clip_grad_norm_; Megatron-LM",
    ),
)
