"""What other languages print when a program's own error ends it: Julia, R, Java, Go, Rust. Data only."""

from __future__ import annotations

from holdfast.diagnosis.evidence import LineRole
from holdfast.diagnosis.logs.pattern import Pattern
from holdfast.model.verdict import FailureClass

LANGUAGES: tuple[Pattern, ...] = (
    Pattern(
        "bug.others",
        LineRole.ROOT,
        FailureClass.BUG,
        ("Fortran runtime error:", "Error using ", "Error in ", "forrtl: "),
        r"^Fortran runtime error: |^forrtl: (?:severe|error) \(\d+\): (?!SIG)|^Error using +\S"
        r"|^Error in \w+ \(line \d+\)",
        ("Fortran runtime error: Index '11' of dimension 1 of array 'u' above upper bound of 10", "Error using  * "),
        ("Error in the data is 0.2", "an Error using this"),
        "libgfortran; MATLAB",
        passing=True,
    ),
    Pattern(
        "bug.tests",
        LineRole.ROOT,
        FailureClass.BUG,
        (" failed", " error", "FAILED", "FAIL:", "FAIL\t"),
        r"^(?:=+ )?(?:\d+ \w+, )*[1-9]\d* (?:failed|errors?)\b.* in \d[\d.:]*s\b|^FAILED \((?:failures|errors)=\d"
        r"|^test result: FAILED\.|% tests passed, [1-9]\d* tests? failed out of|^(?:--- FAIL: |FAIL\t)\S"
        r"|^Tests: +[1-9]\d* failed",
        (
            "======================== 1 failed, 211 passed in 88.10s ========================",
            "FAILED (failures=1)",
            "test result: FAILED. 3 passed; 1 failed; 0 ignored",
            "90% tests passed, 1 tests failed out of 10",
        ),
        ("======================== 211 passed in 88.10s ========================", "3 requests failed in total"),
        "pytest; unittest; cargo; CTest; go test; Jest",
        passing=True,
    ),
    Pattern(
        "bug.julia",
        LineRole.ROOT,
        FailureClass.BUG,
        (
            *("ERROR: LoadError", "ERROR: UndefVarError", "ERROR: BoundsError", "ERROR: MethodError"),
            *("ERROR: ArgumentError", "ERROR: TaskFailedException", "ERROR: DimensionMismatch"),
        ),
        r"^ERROR: (?:LoadError: )?(?P<exception>[A-Z]\w*(?:Error|Exception|Mismatch)\w*)(?:: |\()",
        (
            "ERROR: LoadError: BoundsError: attempt to access 10-element Vector{Float64} at index [11]",
            "ERROR: UndefVarError: `x` not defined in `Main`",
        ),
        ("ERROR: could not read shard 3", "2026 ERROR: ValueError: handled"),
        "Julia, base/errorshow.jl",
        passing=True,
    ),
    Pattern(
        "bug.r",
        LineRole.ROOT,
        FailureClass.BUG,
        ("Execution halted",),
        r"^Execution halted$",
        ("Execution halted",),
        ("Execution halted for 3 s",),
        "R, src/main/errors.c: an error that no handler took ends a script",
        passing=True,
    ),
    Pattern(
        "bug.java",
        LineRole.ROOT,
        FailureClass.BUG,
        ('Exception in thread "main"',),
        r"^Exception in thread \"main\" (?P<exception>[\w.$]+)",
        ('Exception in thread "main" java.lang.NullPointerException: Cannot invoke "String.length()"',),
        ('log: Exception in thread "main" is caught',),
        "java.lang.ThreadGroup.uncaughtException",
        passing=True,
    ),
    Pattern(
        "bug.go",
        LineRole.ROOT,
        FailureClass.BUG,
        ("panic: ", "fatal error: "),
        r"^panic: \S|^fatal error: (?:all goroutines are asleep|concurrent map)",
        ("panic: runtime error: index out of range [3] with length 3",),
        ("kernel panic: none", "do not panic: all is well"),
        "Go runtime, panic.go",
        passing=True,
    ),
    Pattern(
        "bug.rust",
        LineRole.ROOT,
        FailureClass.BUG,
        ("panicked at",),
        r"^thread '[^']*'(?: \(\d+\))? panicked at ",
        ("thread 'main' panicked at src/shard.rs:88:21:",),
        ("a thread panicked at start and was restarted",),
        "Rust, library/std/src/panicking.rs",
        passing=True,
    ),
)
