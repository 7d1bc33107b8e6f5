"""What logs say about experiment trackers that could not be reached, or gave up. Data only."""

from __future__ import annotations

from holdfast.diagnosis.evidence import LineRole
from holdfast.diagnosis.logs.pattern import Pattern
from holdfast.model.verdict import FailureClass

NAMES = r"(?:wandb|w&b|weights ?& ?biases|mlflow|comet(?:_ml)?|neptune|clearml)"

TRACKERS: tuple[Pattern, ...] = (
    Pattern(
        "tracker",
        LineRole.ROOT,
        FailureClass.TRANSIENT,
        ("wandb", "mlflow", "comet_ml", "neptune", "ClearML"),
        r"^(?:wandb\.)(?:\w+\.)*(?:CommError|ServiceStartTimeoutError|ServiceDiedError|MailboxError"
        r"|WandbServiceConnectionError|AuthenticationTimeoutError|Error): "
        r"|wandb: ERROR (?:Run initialization has timed out|Error communicating|.*entering retry loop)"
        r"|wandb: ERROR Error uploading\b"
        r"|wandb: Network error \(\w+\), entering retry loop"
        r"|^mlflow\.exceptions\.MlflowException: API request to .* failed"
        r"|^(?:neptune|comet_ml)\.[\w.]*(?:Connection|Timeout)\w*:",
        (
            "wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec.",
            "wandb: ERROR Run initialization has timed out after 60.0 sec.",
            'wandb: ERROR Error uploading "output.log": CommError, <Response [507]>',
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
        LineRole.CONFIRMATION,
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
    Pattern(
        "tracker.disabled",
        LineRole.CONFIRMATION,
        FailureClass.ENVIRONMENT,
        ("isabled", "isabling", "will not be logged", "will not be synced"),
        r"(?i)\b(?:disabled|disabling)\b.{0,40}" + NAMES + r".{0,80}\b(?:due to|because|error|fail|time(?:d )?out)"
        r"|" + NAMES + r".{0,60}\b(?:disabled|disabling)\b.{0,80}\b(?:due to|because|error|fail|time(?:d )?out)"
        r"|" + NAMES + r".{0,120}\bwill not be (?:logged|synced)\b",
        (
            "Disabled WandB due to initialization error: Run initialization has timed out",
            "wandb: W&B disabled due to login timeout.",
            "COMET WARNING: comet_ml: the experiment will not be logged",
        ),
        (
            "wandb: W&B syncing is set to `offline` in this directory.",
            "wandb is disabled (WANDB_MODE=disabled)",
            "gradient checkpointing disabled due to error in config",
        ),
        "wandb wandb_login.py",
        "the tracker registered no run: give it what it lacks, and fill in from the log what was not recorded",
        ("U35",),
    ),
)
