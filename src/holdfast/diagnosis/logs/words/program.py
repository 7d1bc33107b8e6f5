"""What logs say about the program itself: native crashes, interrupts, faults of its text. Data only."""

from __future__ import annotations

from holdfast.diagnosis.evidence import LineRole
from holdfast.diagnosis.logs.pattern import END, Pattern
from holdfast.model.verdict import FailureClass

PROGRAM: tuple[Pattern, ...] = (
    Pattern(
        "native",
        LineRole.ROOT,
        FailureClass.NATIVE_CRASH,
        (
            "egmentation fault",
            "invalid pointer",
            "double free",
            "stack smashing",
            "Illegal instruction",
            "Floating point exception",
            "malloc()",
            "corrupted",
            "invalid size",
            *("ignal: Aborted", ": Aborted"),
            *("SIGSEGV", "Program received signal SIG"),
            "Floating-point",
            "forrtl: severe",
        ),
        r"^(?:\S+: line \d+: +\d+ |zsh: )?[Ss]egmentation fault\b"
        r"|Fatal Python error: (?:Segmentation fault|Illegal instruction|Floating.point exception)"
        r"|^(?:\w+\(\): (?:invalid (?:pointer|size|next size)|corrupted|double free|memory corruption)"
        r"|double free or corruption|corrupted (?:size vs\. prev_size|double-linked list))"
        r"|\*\*\* stack smashing detected \*\*\*"
        r"|^(?:\S+: line \d+: +\d+ )?(?:Illegal instruction|Floating point exception)(?: \(|$| {2,})"
        r"|killed by signal: (?:Segmentation fault|Aborted)|died with <Signals\.SIG(?:SEGV|ILL|FPE)"
        r"|Signal 11 \(SIGSEGV\) received|exited on signal 11 \(Segmentation"
        r"|^srun: error: .*task\S* \S+: (?:Segmentation fault|Aborted|Illegal instruction)"
        r"|^Program received signal SIG(?:SEGV|BUS|ILL|FPE|ABRT)\b"
        r"|\] Signal: (?:Segmentation fault|Aborted|Illegal instruction|Floating point exception) \(\d+\)"
        r"|^munmap_chunk\(\): invalid pointer|^forrtl: severe \(\d+\): SIG(?:SEGV|BUS|ILL|FPE|ABRT)",
        (
            "Segmentation fault (core dumped)",
            "Fatal Python error: Segmentation fault",
            "free(): invalid pointer",
            "double free or corruption (!prev)",
            "*** stack smashing detected ***: terminated",
            "Illegal instruction (core dumped)",
            "run.sh: line 4:  99 Segmentation fault      python x.py",
            "RuntimeError: DataLoader worker (pid 44) is killed by signal: Segmentation fault. ",
            "srun: error: n2: task 2: Segmentation fault (core dumped)",
            "[n3:22141] Signal: Segmentation fault (11)",
            "Program received signal SIGSEGV: Segmentation fault - invalid memory reference.",
            "forrtl: severe (174): SIGSEGV, segmentation fault occurred",
        ),
        ("no Segmentation fault so far", "image segmentation fault detection: 0.9", "corrupted images skipped: 3"),
        "glibc malloc; CPython faulthandler; signal(7)",
    ),
    Pattern(
        "native.abort",
        LineRole.CONFIRMATION,
        FailureClass.NATIVE_CRASH,
        ("terminate called", "Aborted", "SIGABRT", "Fatal Python error"),
        (
            r"^terminate called (?:after throwing|without an active)"
            r"|^(?:\S+: line \d+: +\d+ )?Aborted(?: \(core dumped\)|$| {2,})"
            r"|Fatal Python error: (?!Segm|Illeg|Float|Bus)"
        ),
        (
            "terminate called after throwing an instance of 'c10::DistBackendError'",
            "Aborted (core dumped)",
            "Fatal Python error: Aborted",
        ),
        ("Aborted 3 requests", "we terminate called workers"),
        "abort(3)",
    ),
    Pattern(
        "interrupted",
        LineRole.CONFIRMATION,
        FailureClass.KILLED,
        ("KeyboardInterrupt",),
        r"^KeyboardInterrupt" + END,
        ("KeyboardInterrupt", "[rank0]: KeyboardInterrupt"),
        ("except KeyboardInterrupt: pass",),
        "CPython: SIGINT",
    ),
    Pattern(
        "bug.syntax",
        LineRole.ROOT,
        FailureClass.BUG,
        ("SyntaxError:", "IndentationError:", "TabError:", "unexpected end of file", "syntax error near"),
        (
            r"^(?:SyntaxError|IndentationError|TabError): "
            r"|: line \d+: syntax error(?: near (?!.*\\r)|: unexpected end of file)"
        ),
        (
            "SyntaxError: invalid syntax",
            "IndentationError: unexpected indent",
            "x.sh: line 9: syntax error near unexpected token `fi'",
        ),
        ("caught SyntaxError: fine",),
        "CPython; bash",
    ),
    Pattern(
        "bug.main_guard",
        LineRole.ROOT,
        FailureClass.BUG,
        ("An attempt has been made to start a new process",),
        r"^ *(?:RuntimeError: )?An attempt has been made to start a new process before the$"
        r"|^RuntimeError: An attempt has been made to start a new process",
        (
            "        An attempt has been made to start a new process before the",
            "RuntimeError: An attempt has been made to start a new process before the current process has finished",
        ),
        ("log: An attempt has been made to start a new process of thinking",),
        "CPython multiprocessing.spawn",
        "put what the script does under `if __name__ == '__main__':`: each worker process imports the script",
        ("U44",),
    ),
    Pattern(
        "bug.input",
        LineRole.ROOT,
        FailureClass.BUG,
        ("EOF when reading a line",),
        r"^EOFError: EOF when reading a line$",
        ("EOFError: EOF when reading a line",),
        ("caught EOFError: EOF when reading a line",),
        "CPython, bltinmodule.c, input()",
        "it asks for input, and nobody is there to answer: the standard input of a job is empty. Give it the answer as "
        "an argument, a variable (--env) or a file, or have its command read one (sh -c 'python x.py < answers.txt')",
        passing=True,
    ),
    Pattern(
        "bug.image_size",
        LineRole.ROOT,
        FailureClass.BUG,
        ("less than 2^16",),
        r"^ValueError: Image size of \d+x\d+ pixels is too large\. It must be less than 2\^16",
        ("ValueError: Image size of 1000x70000 pixels is too large. It must be less than 2^16 in each direction.",),
        ("note: Image size of 8x8 pixels is less than 2^16",),
        "matplotlib, backend_agg",
        "draw in parts, or with fewer dots per inch",
        ("U37",),
    ),
    Pattern(
        "bug.arguments",
        LineRole.ROOT,
        FailureClass.BUG,
        (
            ": error: ",
            "Error: No such ",
            "Error: Invalid value for",
            "Error: Missing ",
            "No such option",
            "Invalid value for",
            "Could not override",
            *("consume arg", "unbound variable", "parameter not set", "parameter null"),
        ),
        r"^Error: (?:No such (?:option|command)|Invalid value for|Missing (?:argument|option|parameter)"
        r"|Got unexpected extra)"
        r"|^\N{BOX DRAWINGS LIGHT VERTICAL} (?:No such option|Invalid value for|Missing (?:argument|option))"
        r"|^\S+: (?:line \d+: )?\w+: (?:unbound variable|parameter (?:not set|null or not set))$"
        r"|^Could not override '|^ERROR: Could not consume arg"
        r"|^\S+: error: (?:the following arguments are required|unrecognized arguments|argument \S+: "
        r"|ambiguous option)",
        (
            "train.py: error: unrecognized arguments: --lr-rate 3",
            "train.py: error: the following arguments are required: --data",
            "./run.sh: line 7: DATA_DIR: unbound variable",
            "Error: No such option: --epoch Did you mean --epochs?",
        ),
        ("gcc: error: x.o: linker input file unused", "loss: error: argument"),
        "CPython argparse; click",
        "correct the command line",
    ),
)
