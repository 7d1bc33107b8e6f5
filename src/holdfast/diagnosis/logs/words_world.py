"""What logs say about a program's surroundings: packages, commands, the network, trackers. Data only."""

from __future__ import annotations

from ...model.verdict import FailureClass
from ..evidence import Role
from .pattern import Pattern

WORLD: tuple[Pattern, ...] = (
    Pattern(
        "import.module",
        Role.ROOT,
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
        Role.ROOT,
        FailureClass.ENVIRONMENT,
        (
            "cannot open shared object file",
            "undefined symbol:",
            "' not found (required by",
            "could not load library libcud",
            "Could not load library libcud",
            "may indicate binary incompatibility",
        ),
        r"^(?:(?:Import|OS)Error: "
        r"|.{0,80}error while loading shared libraries: )(?P<library>[\w.+-]+\.so[\w.]*): cannot open"
        r"|^(?:(?:Import|OS)Error|\S+: symbol lookup error): .*undefined symbol: \w+"
        r"|version `(?P<version>\S+)' not found \(required by|[Cc]ould not load library libcud"
        r"|^ValueError: numpy\.\w+ size changed, may indicate binary incompatibility",
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
        Role.ROOT,
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
        "command.carriage_return",
        Role.ROOT,
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
        Role.ROOT,
        FailureClass.EXEC_FAILED,
        (
            "command not found",
            ": not found",
            "bad interpreter",
            "can't open file",
            "Exec format error",
            "cannot execute",
            "unbound variable",
            ": Permission denied",
        ),
        r"^(?:\S+: (?:line )?\d+: |-?(?:ba|z|da)?sh: (?:\d+: )?)"
        r"(?P<command>[^$\s:]+): (?:command )?not found$|^zsh: command not found: \S+"
        r"|: bad interpreter: (?!.*\^M)|python[\d.]*: can't open file '?(?P<file>[^':]+)"
        r"|(?:^|[:\]] )\[?(?:Errno 8\] )?Exec format error"
        r"|: cannot execute(?: binary file|: required file not found)"
        r"|^\S+: (?:line \d+: )?\w+: unbound variable"
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
    Pattern(
        "net.resolve",
        Role.ROOT,
        FailureClass.TRANSIENT,
        (
            "name resolution",
            "Name or service not known",
            "resolve host",
            "NameResolutionError",
            "getaddrinfo failed",
            "No address associated",
        ),
        (
            r"Temporary failure in name resolution|Name or service not known"
            r"|[Cc]ould not resolve host(?:name)?:? ?(?P<host>[\w.-]+)?|NameResolutionError\("
            r"|socket\.gaierror: |getaddrinfo failed"
        ),
        (
            "socket.gaierror: [Errno -3] Temporary failure in name resolution",
            "curl: (6) Could not resolve host: huggingface.co",
            "fatal: unable to access 'https://x/': Could not resolve host: github.com",
        ),
        ("name resolution took 3 ms",),
        "getaddrinfo(3)",
        passing=True,
    ),
    Pattern(
        "net.destination",
        Role.ROOT,
        FailureClass.SYNC_FAILED,
        ("No such file or directory",),
        r'^rsync: (?:\[\w+\] )?(?:mkdir|change_dir#?\d*|ERROR: cannot stat destination) ?"[^"]+" failed:'
        r" No such file or directory|^scp: (?:dest open |realpath )?\S+: No such file or directory",
        (
            'rsync: [Receiver] mkdir "/data/run7/ckpt" failed: No such file or directory (2)',
            'scp: dest open "/data/run7/model.pt": No such file or directory',
            "scp: /data/run7: No such file or directory",
        ),
        ('rsync: link_stat "/x" failed: No such file or directory (2)', "no scp: No such file or directory here"),
        "rsync(1), main.c; OpenSSH, scp.c",
        "make the destination in the same command (rsync --mkpath, or mkdir -p first), and copy again",
        ("U13",),
        passing=True,
    ),
    Pattern(
        "net.transfer",
        Role.ROOT,
        FailureClass.TRANSIENT,
        (
            "IncompleteRead",
            "ChunkedEncodingError",
            "Connection broken",
            "ReadTimeout",
            "Read timed out",
            "ConnectTimeout",
            "curl: (",
            "rsync error",
            "Connection refused",
            "ConnectionError",
            "Too Many Requests",
            "Service Unavailable",
            "Gateway",
            "client_loop: send disconnect",
            "Max retries exceeded",
            "ProtocolError",
            "SlowDown",
            "Server Error",
        ),
        r"^(?:\w+\.)*(?:ChunkedEncodingError|IncompleteRead|ReadTimeout(?:Error)?|ConnectTimeout(?:Error)?"
        r"|ProtocolError|(?:requests\.exceptions|urllib3\.exceptions|httpx"
        r"|aiohttp\.\w+)\.?\w*Connect\w*Error)\b|^requests\.exceptions\.ConnectionError"
        r"|^curl: \((?:7|18|28|35|52|55|56)\) |^rsync error: .*\(code (?:10|12|30|35|255)\)"
        r"|client_loop: send disconnect|^(?:\w+\.)*(?:HTTPError|HfHubHTTPError): (?:429|50[0234])\b"
        r"|\b(?:429 Client Error: Too Many Requests|50[0234] Server Error)"
        r"|^(?:\w+\.)*ConnectionRefusedError: ",
        (
            (
                "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', "
                "port=443): Max retries exceeded with url: /x"
            ),
            "requests.exceptions.ChunkedEncodingError: ('Connection broken: IncompleteRead(512 bytes read)')",
            (
                "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='x', port=443): Read timed "
                "out. (read timeout=10)"
            ),
            "curl: (56) Recv failure: Connection reset by peer",
            "rsync error: error in rsync protocol data stream (code 12) at io.c(232) [receiver=3.2.7]",
            "client_loop: send disconnect: Broken pipe",
            "urllib.error.HTTPError: 503 Service Unavailable",
            (
                "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: "
                "https://huggingface.co/x"
            ),
        ),
        (
            "retries: ReadTimeout is set to 10",
            "curl: (22) The requested URL returned error: 404",
            "urllib.error.HTTPError: HTTP Error 404: Not Found",
        ),
        "requests, urllib3; curl(1); rsync(1)",
        gotchas=("U12",),
        passing=True,
    ),
    Pattern(
        "tracker",
        Role.ROOT,
        FailureClass.TRANSIENT,
        ("wandb", "mlflow", "comet_ml", "neptune", "ClearML"),
        r"^(?:wandb\.)(?:\w+\.)*(?:CommError|ServiceStartTimeoutError|ServiceDiedError|MailboxError"
        r"|WandbServiceConnectionError|AuthenticationTimeoutError|Error): "
        r"|wandb: ERROR (?:Run initialization has timed out|Error communicating|.*entering retry loop)"
        r"|wandb: Network error \(\w+\), entering retry loop"
        r"|^mlflow\.exceptions\.MlflowException: API request to .* failed"
        r"|^(?:neptune|comet_ml)\.[\w.]*(?:Connection|Timeout)\w*:",
        (
            "wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec.",
            "wandb: ERROR Run initialization has timed out after 60.0 sec.",
            "wandb: Network error (ConnectionError), entering retry loop.",
            (
                "mlflow.exceptions.MlflowException: API request to "
                "http://mlflow:5000/api/2.0/mlflow/runs/create failed with exception"
            ),
        ),
        ("wandb: Tracking run with wandb version 0.17.0", "wandb: ERROR api_key not configured (no-tty)"),
        "wandb wandb_init.py; mlflow rest_utils.py",
        "the tracker could not be reached: run again, or set it offline (WANDB_MODE=offline) and sync later",
        passing=True,
    ),
    Pattern(
        "tracker.no_key",
        Role.CONFIRMATION,
        FailureClass.ENVIRONMENT,
        ("No API key", "api_key not configured", "API key must be", "401 Client Error", "gated repo", "WANDB_API_KEY"),
        (
            r"\bDisabled\b.*\bNo API key\b|api_key not configured \(no-tty\)|No API key configured"
            r"|401 Client Error: Unauthorized|Cannot access gated repo"
        ),
        (
            "tracker: Disabled, running without it. No API key",
            "wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
            "wandb: ERROR No API key configured. Use `wandb login` to log in.",
            (
                "huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo for "
                "url https://huggingface.co/x"
            ),
        ),
        ("wandb: W&B API key is configured. Use `wandb login --relogin` to force relogin",),
        "wandb; huggingface_hub",
        "give the job its credential before the start; what was not recorded can be filled in from the log",
        ("U35",),
    ),
)
