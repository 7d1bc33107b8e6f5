"""The command group: verbs are found by their file's name and imported only when used.

Listing, suggesting and completing verbs work from `verbs.SUMMARIES` alone.
"""

from __future__ import annotations

import shlex

import click

from holdfast import __version__
from holdfast.core.near import find_near
from holdfast.model.errors import UsageError

from .job.shell_words import run_script
from .lazy_group import LazyGroup
from .verbs import GROUPS, SUMMARIES

EPILOG = """\b
holdfast run job.yaml                                   run a job file and follow it
holdfast run --gpus 1 --timeout 4h -- python train.py   run a command
holdfast run -d job.yaml                                start it and return

The job's own exit code passes through. holdfast's own: 64 usage, 65 bad job file or checkpoint, 66 no such name,
69 cannot be told, 70 internal, 71 lost, 73 result missing, 74 input/output, 75 busy, 76 still alive,
77 not permitted, 78 preflight failed, 124 timed out, 130 stopped, 143 preempted."""


class VerbGroup(LazyGroup):
    """The verbs under their headings, with a suggestion for a misspelt one."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """The verbs, a section for each heading, all in the same two columns."""
        width = max(len(verb) for verb in SUMMARIES)
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(verb.ljust(width), words) for verb, words in verbs.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a suggestion for a misspelt verb."""
        if args[0] not in SUMMARIES and not args[0].startswith("-") and not ctx.resilient_parsing:
            hint = suggest_verb(args[0], named=len(args) > 1)
            if args[0].endswith((".py", ".sh")):
                hint = f"to run a script: {shlex.join(['holdfast', 'run', '--', *run_script(args[0]), *args[1:]])}"
            if args[0] == "help" and len(args) > 1 and args[1] in SUMMARIES:
                hint = f"did you mean `holdfast {args[1]} --help`?"
            raise UsageError(f"there is no verb {args[0]!r}", hint=hint)
        return super().resolve_command(ctx, args)


ELSEWHERE = {
    **dict.fromkeys(("ps", "list", "status", "jobs", "runs"), "ls"),
    **dict.fromkeys(("start", "srun"), "run"),
    **dict.fromkeys(("add", "enqueue", "sbatch", "qsub"), "submit"),
    **dict.fromkeys(("squeue", "qstat", "pause", "drain"), "queue"),
    **dict.fromkeys(("kill", "cancel", "scancel", "end", "abort", "terminate"), "stop"),
    **dict.fromkeys(("log", "tail", "cat", "output"), "logs"),
    **dict.fromkeys(("follow", "watch"), "attach"),
    **dict.fromkeys(("info", "inspect", "describe", "why"), "show"),
    **dict.fromkeys(("delete", "remove", "clean", "clear"), "rm"),
    **dict.fromkeys(("cards", "gpu", "smi", "top", "nvidia-smi"), "gpus"),
    **dict.fromkeys(("check", "validate"), "preflight"),
    **dict.fromkeys(("resume", "retry", "rerun"), "restart"),
    **dict.fromkeys(("save", "snapshot"), "checkpoint"),
    **dict.fromkeys(("ckpt", "export"), "checkpoints"),
    **dict.fromkeys(("host", "hosts", "places", "remote", "node", "box"), "place"),
    **dict.fromkeys(("rehearse", "chaos"), "drill"),
    **dict.fromkeys(("diff", "compare"), "show RUN --against OTHER"),
    "release": "gpus release",
    "health": "gpus health",
    "help": "--help",
    "version": "--version",
}
"""What other tools call a verb, to ours. A near spelling would mislead: `status` looks most like `restart`."""


NEAR = 0.65
"""How alike a misspelt verb and the one that is proposed are: `rnu` and `run`, but not `verify` and `version`."""


def suggest_verb(word: str, *, named: bool = False) -> str:
    """What to do about an unknown verb: the one that is meant, and where the list is. `named`: of one run."""
    if word == "status" and named:
        return "did you mean `holdfast show`? `holdfast --help` lists the verbs"
    if word in ELSEWHERE:
        return f"did you mean `holdfast {ELSEWHERE[word]}`? `holdfast --help` lists the verbs"
    near = find_near(word, (*SUMMARIES, *ELSEWHERE), cutoff=NEAR)
    if near in ELSEWHERE:
        return suggest_verb(near, named=named)
    if near:
        return f"did you mean {near}? `holdfast --help` lists the verbs"
    return "`holdfast --help` lists the verbs; to run a command write `holdfast run -- COMMAND`"


@click.group(
    cls=VerbGroup,
    package="holdfast.cli.verbs",
    summaries=SUMMARIES,
    invoke_without_command=True,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, "-V", "--version", prog_name="holdfast", message="%(prog)s %(version)s")
@click.pass_context
def holdfast(ctx: click.Context) -> int:
    """Run training jobs on GPUs that people share or rent, and lose nothing."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(UsageError.exit_code)
    return 0
