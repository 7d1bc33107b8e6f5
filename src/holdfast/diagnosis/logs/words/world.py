"""What logs say about a program's surroundings: packages, the installation, commands. Data only."""

from __future__ import annotations

from holdfast.diagnosis.evidence import LineRole
from holdfast.diagnosis.logs.pattern import Pattern
from holdfast.model.verdict import FailureClass

WORLD: tuple[Pattern, ...] = (
    Pattern(
        "import.own",
        LineRole.ROOT,
        FailureClass.BUG,
        ("partially initialized module", "attempted relative import", "cannot import name"),
        r"^ImportError: (?:.*partially initialized module|attempted relative import"
        r"|cannot import name '\w+' from '[\w.]+' \((?!.*(?:site-packages|dist-packages|/usr/|/opt/|unknown))/)"
        r"|^AttributeError: partially initialized module",
        (
            (
                "ImportError: cannot import name 'EMA' from partially initialized module 'train' (most likely due to a "
                "circular import) (/home/u/train.py)"
            ),
            "ImportError: attempted relative import with no known parent package",
            "ImportError: cannot import name 'Net' from 'model' (/home/u/p/model.py)",
        ),
        (
            "ImportError: cannot import name 'x' from 'y' (/usr/lib/y.py)",
            "ImportError: cannot import name 'x' from 'torch' (/venv/lib/python3.11/site-packages/torch/__init__.py)",
        ),
        "CPython importlib: the module lies beside the job, not in an installation",
        "modules of the job import each other in a circle, or a name is not in them: correct the imports",
    ),
    Pattern(
        "import.module",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        ("ModuleNotFoundError", "ImportError", "No module named"),
        (
            r"^(?:\w+\.)*(?:ModuleNotFoundError|ImportError): (?:No module named '?(?P<module>[\w.]+)'?)?"
            r"|: No module named (?P<name>[\w.]+)$"
        ),
        (
            "ModuleNotFoundError: No module named 'torch'",
            "ImportError: cannot import name 'x' from 'y' (/usr/lib/y.py)",
            "/usr/bin/python3: No module named pip",
        ),
        ("except ImportError: using the slow path", "WARNING ImportErrors: 0"),
        "CPython importlib",
        "activate the environment that has it before `holdfast run`, or name its python in the command",
    ),
    Pattern(
        "import.library",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        (
            "cannot open shared object file",
            "undefined symbol:",
            "' not found (required by",
            "could not load library libcud",
            "Could not load library libcud",
            "may indicate binary incompatibility",
            "because of the following error",
            "was removed in the NumPy 2",
        ),
        r"^(?:(?:Import|OS)Error: "
        r"|.{0,80}error while loading shared libraries: )(?P<library>[\w.+-]+\.so[\w.]*): cannot open"
        r"|^(?:(?:Import|OS)Error|\S+: symbol lookup error): .*undefined symbol: \w+"
        r"|version `(?P<version>\S+)' not found \(required by|[Cc]ould not load library libcud"
        r"|^ValueError: numpy\.\w+ size changed, may indicate binary incompatibility"
        r"|^/\S+\.so[\w.]*: undefined symbol|^RuntimeError: Failed to import \S+ because of the following error"
        r"|was removed in the NumPy 2\.0 release",
        (
            "ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory",
            "ImportError: /x/_C.so: undefined symbol: _ZN3c104cuda",
            "python: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by python)",
            "Could not load library libcudnn_cnn_infer.so.8. Error: libcuda.so",
            "python: error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file",
            (
                "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 "
                "from C header, got 88"
            ),
        ),
        (
            (
                "W dso_loader.cc:64] Could not load dynamic library 'libnvinfer.so.7'; dlerror: "
                "libnvinfer.so.7: cannot open shared object file"
            ),
            "UserWarning: Failed to load image Python extension: '/x/image.so: undefined symbol: _ZN3c106'",
        ),
        "ld.so(8); NumPy",
        "packages that were not built for each other or a library that is missing: install from one lock file",
        ("U28", "U29"),
    ),
    Pattern(
        "import.numpy",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        ("compiled using NumPy 1.x",),
        r"^A module that was compiled using NumPy 1\.x cannot be run",
        ("A module that was compiled using NumPy 1.x cannot be run in NumPy 2.0.1 as it may crash.",),
        ("some modules were compiled using NumPy 1.x",),
        "NumPy 2",
        "a package was built for NumPy 1: update it, or install numpy<2",
        ("U29",),
        passing=True,
    ),
    Pattern(
        "install.mismatch",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        (
            "Unexpected error from cudaGetDeviceCount",
            *("CUDA Setup failed", "CUDA unknown error", "Failed to find C compiler", "torch was compiled with"),
            *("infer device type", "but source was compiled with", "DNN library initialization failed"),
            *("but your machine only has", "nvcc fatal", "CUDAMismatch", "Unsupported gpu architecture"),
        ),
        r"^RuntimeError: Unexpected error from cudaGetDeviceCount(?!.*Error 80[234]: )|CUDA Setup failed despite"
        r"|CUDA unknown error - this may be due to|Failed to find C compiler"
        r"|CUDA version \S+ does not match the version torch was compiled with|Failed to infer device type"
        r"|Loaded runtime CuDNN library: \S+ but source was compiled with|DNN library initialization failed"
        r"|^nvcc fatal\b|Unsupported gpu architecture",
        (
            "        CUDA Setup failed despite GPU being available. Please run the following command",
            (
                "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. "
                "changing env"
            ),
            "torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler. Please specify via CC",
            (
                "CUDAMismatchException: >- DeepSpeed Op Builder: Installed CUDA version 11.8 does not match the "
                "version torch "
                "was compiled with 12.1"
            ),
            "RuntimeError: Failed to infer device type, please set the environment variable",
            "Loaded runtime CuDNN library: 8.9.2 but source was compiled with: 9.1.0.",
            "nvcc fatal   : Unsupported gpu architecture 'compute_120'",
        ),
        ("torch was compiled with CUDA 12.4", "CUDA unknown error count: 0"),
        "bitsandbytes; torch/cuda/__init__.py; torch inductor; DeepSpeed op_builder; vLLM; XLA cuda_dnn.cc",
        (
            "packages, driver and compiler of this environment do not fit: holdfast doctor, then install from one "
            "lock file"
        ),
        ("U28",),
    ),
    Pattern(
        "install.headers",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        ("fatal error: ",),
        r"^\S+:\d+(?::\d+)?: fatal error: (?P<missing>\S+): No such file or directory",
        (
            "/build/main.c:5:10: fatal error: Python.h: No such file or directory",
            "csrc/flash.cpp:2:10: fatal error: cuda_runtime.h: No such file or directory",
        ),
        ("note: fatal error: x.h: No such file or directory is expected",),
        "GCC, clang",
        "install what the header belongs to (for Python.h the -dev package of that Python), or set include paths",
    ),
    Pattern(
        "install.missing",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        (
            *("No matching distribution found", "there is no package called", "not found in current path"),
            *("EnvironmentLocationNotFound", "Could not find conda environment", "EnvironmentNameNotFound"),
            *("ResolutionImpossible", "No solution found when resolving", "externally-managed-environment"),
            *(
                "CondaError",
                "Can't locate ",
                "requires a different Python",
                "RuntimeEnvSetupError",
                "UnsatisfiableError",
            ),
            *(
                "unmet dependencies",
                "Unable to locate package",
                "Could not find a version",
                "metadata-generation-failed",
            ),
        ),
        r"^\s*(?:ERROR: )(?:No matching distribution found|Could not find a version that)"
        r"|^(?:\w+\.)*RuntimeEnvSetupError"
        r"|^\w*UnsatisfiableError: |^E: Unable to locate package|have unmet dependencies:"
        r"|^(?:error: )?metadata-generation-f"
        r"|there is no package called|Package \S+ not found in current path"
        r"|^(?:EnvironmentLocationNotFound|EnvironmentNameNotFound): |^Could not find conda environment"
        r"|^ERROR: ResolutionImpossible|No solution found when resolving dependencies"
        r"|^error: externally-managed-environment|^Can't locate \S+ in @INC"
        r"|requires a different Python:",
        (
            "ERROR: No matching distribution found for flash-attn==9.9",
            "    ERROR: Could not find a version that satisfies the requirement flash-attn==9.9",
            "ray.exceptions.RuntimeEnvSetupError: Failed to set up runtime environment.",
            "LibMambaUnsatisfiableError: Encountered problems while solving:",
            "E: Unable to locate package libnccl3",
            "Error in library(torch) : there is no package called 'torch'",
            "ERROR: LoadError: ArgumentError: Package Flux not found in current path.",
            "EnvironmentLocationNotFound: Not a conda environment: /home/u/miniconda3/envs/x",
        ),
        ("see there is a package called torch",),
        "pip; uv; conda; R; Julia Pkg",
        "install what is named, or name the environment that has it",
    ),
    Pattern(
        "command.carriage_return",
        LineRole.ROOT,
        FailureClass.EXEC_FAILED,
        ("command not found", "bad interpreter", "No such file or directory", "syntax error near"),
        (
            r"\$'[^']*\\r': command not found|(?:bad interpreter|env): .*(?:\^M|\\r)|\^M: bad interpreter"
            r"|syntax error near unexpected token `\$'[^']*\\r''|env: .*\\r['\u2019]: No such file"
        ),
        (
            r"./train.sh: line 2: $'\r': command not found",
            "bash: ./train.sh: /bin/bash^M: bad interpreter: No such file or directory",
            r"env: 'bash\r': No such file or directory",
            r"x.sh: line 9: syntax error near unexpected token `$'do\r''",
        ),
        ("press ^M to go on",),
        "bash; env(1): lines that end in carriage return and line feed",
        "the script has Windows line ends: sed -i 's/\\r$//' FILE",
        ("U26", "GEN4"),
    ),
    Pattern(
        "command.missing",
        LineRole.ROOT,
        FailureClass.EXEC_FAILED,
        (
            "command not found",
            ": not found",
            "bad interpreter",
            "can't open file",
            "Exec format error",
            "cannot execute",
            ": Permission denied",
        ),
        r"^ *(?:\S+: (?:line )?\d+: |-?(?:ba|z|da)?sh: (?:\d+: )?)"
        r"(?P<command>[^$\s:]+): (?:command )?not found$|^zsh: command not found: \S+"
        r"|: bad interpreter: (?!.*\^M)|python[\d.]*: can't open file '?(?P<file>[^':]+)"
        r"|(?:^|[:\]] )\[?(?:Errno 8\] )?Exec format error"
        r"|: cannot execute(?: binary file|: required file not found)"
        r"|^(?:\S+: (?:line )?\d+: |(?:ba|z|da)?sh: (?:\d+: )?)(?P<path>\.{0,2}/\S+): Permission denied$",
        (
            "./train.sh: line 3: nvcc: command not found",
            "bash: torchrun: command not found",
            "sh: 1: python: not found",
            "bash: ./x: /opt/python: bad interpreter: No such file or directory",
            "python3: can't open file '/w/train.py': [Errno 2] No such file or directory",
            "OSError: [Errno 8] Exec format error: './x'",
            "bash: ./x: cannot execute binary file: Exec format error",
            "sh: 1: ./train: Permission denied",
        ),
        (
            "ckpt.pt: not found, training from scratch",
            "key: not found",
            "git: command not found (ignored)",
            "cat: /x: Permission denied",
        ),
        "bash, dash, CPython",
        "correct the command, or activate its environment",
        passing=True,
    ),
)
