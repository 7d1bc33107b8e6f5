"""A place with our bundle on it: commands and internal entries run there as if it were here.

A warm call is one round trip: the command line that runs the bundle looks whether it is there, and says so behind a
mark that nobody can know when it is not; then it is pushed, and the call is made again, which is safe because nothing
had run. Owned here: that the bundle is there, what is remembered of the box. Not here: how a box is met (`contact`),
what an answer means (`answers`), what is pushed (`bundle`), how bytes travel (`transport`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from holdfast.core.control_characters import one_line
from holdfast.host.clock import format_utc
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, InternalError, PlaceError, StorageError, UsageError
from holdfast.model.place import BoxFacts, Place
from holdfast.model.record import replace
from holdfast.model.runs_root import bundles_dir
from holdfast.transport.base import LONGEST_LINE, MOST_BYTES, Done, Transport

from .answers import LONGEST_SEEN, read_answer
from .bundle import bootstrap
from .bundle.build import Bundle, get_own_bundle
from .contact import CONTACT_LIMIT_S, ENTRY, choose_words, contact, make_mark

CLOCK_TOLERANCE_S = 5.0
TRIES = 3
FAULTY_CODES = (1, InternalError.exit_code)
FAULTS = (
    b"this is a bug in holdfast",
    b'"code": "internal"',
    b"what was sent here cannot be loaded",
    b'/hf.py", line ',
)
"""What is said of a fault of our own: by the command line, an entry, ``hf.py``, and Python where that cannot go on."""
UNSTARTED_CODES = (126, 127)
"""A shell could not start it. Source: POSIX, sh, "Exit Status"; the dynamic loader's code is 127, too."""
BROKEN_PYTHON = (b"and holdfast needs 3.10", b"Fatal Python error: init_")
"""What `hf.py` says of an interpreter that is too old, and one of itself that lacks its own library."""
LAST_BYTES = 16 << 10
"""Of what was said, as much as that."""


class Box:
    """A place with our bundle on it. Thread-safe; `facts` is None until it was met once.

    Every method that sends raises what `Transport` raises, and:

    Raises:
        NoInterpreter: the place has no Python that we could use.
        UsageError, NotPermitted, StorageError: the runs root there cannot be used; says why and what to do.
    """

    def __init__(
        self,
        place: Place,
        transport: Transport,
        *,
        facts: BoxFacts | None,
        remember: Callable[[BoxFacts], None],
        unfinished: Callable[[], Sequence[str]] = list,
    ) -> None:
        """`facts` are what was measured earlier; `remember` gets what is measured anew.

        `unfinished` names runs there that had not ended, as far as is known: while there are any, a runs root without
        anything in it is not taken for a new one.
        """
        self.place, self.transport, self.facts = place, transport, facts
        self._remember, self._list_unfinished = remember, unfinished
        self._meeting = threading.Lock()
        """Held while the box is met, which may take minutes: who knows what he needs does not wait for it."""
        self._meetings = 0
        self._seen = False
        self._bundle: Bundle | None = None

    # ------------------------------------------------------------------------------------------------------- calls

    @property
    def is_met(self) -> bool:
        """Whether this bundle was seen there; else the next call brings it, which takes a while."""
        return self._get_known() is not None

    def ensure(self) -> BoxFacts:
        """What is known of the box; it is met, and gets the bundle, when nothing is known of it or of this bundle."""
        known = self._get_known()
        if known is not None:
            return known
        with self._meeting:
            known = self._get_known()  # another thread may have met it meanwhile
            return known if known is not None else self._meet()[0]

    def prepare(self, *, sends: bool) -> None:
        """Meet the box, if that is still to be done, which may take minutes; `sends`: a call has input to be read once.

        For whoever is about to turn signals into numbers: until then each ends the command.
        """
        self.ensure()
        if sends:
            self._prove()

    def probe(self) -> BoxFacts:
        """Measure the box now, whatever is known; the bundle there is proven, file by file, and mended."""
        with self._meeting:
            return self._meet(accepts_empty=True)[0]

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Iterable[bytes] = b"",
        env: Mapping[str, str] | None = None,
        limit_s: float,
        most_bytes: int = MOST_BYTES,
        stall_s: float | None = None,
    ) -> Done:
        """Run ``holdfast ARGV`` there to its end. An iterator as `stdin`, which is read once, costs a look first."""
        if isinstance(stdin, Iterator):
            self._prove()
        for _ in range(TRIES):
            meetings, facts = self._meetings, self.ensure()
            mark = make_mark()
            words = self._build_words(facts, argv, env, mark)
            done = self.transport.run(
                bootstrap.RUN_SCRIPT, words, stdin=stdin, limit_s=limit_s, most_bytes=most_bytes, stall_s=stall_s
            )
            if not done.out.startswith(mark.encode()):
                said = done.err + done.out[-LAST_BYTES:]
                changed = self._has_changed_python(facts, meetings, done.code, said, silent=not done.out)
                if changed and not isinstance(stdin, Iterator):
                    continue
                self._seen = True
                self._mend_if_broken(done.code, said)
                return done
            self._meet_again(meetings)
        raise self._vanishing()

    def entry(
        self,
        name: str,
        words: Sequence[str] = (),
        *,
        stdin: bytes | Iterable[bytes] = b"",
        limit_s: float,
        stall_s: float | None = None,
    ) -> dict[str, object]:
        """Ask the internal entry `name`, and answer its object; `stall_s` as of `Transport.run`.

        Raises:
            HoldfastError: what the entry reported, as the class that its code names; `details` has the place.
            InternalError: it answered nothing that can be read.
        """
        done = self.run((ENTRY, name, *words), stdin=stdin, limit_s=limit_s, stall_s=stall_s)
        if not done.out and done.code:
            self._mend()
        return read_answer(self.place.name, name, done)

    def follow(
        self,
        argv: Sequence[str],
        *,
        out: Callable[[bytes], None],
        err: Callable[[bytes], None],
        stdin_fd: int | None = None,
        wake_fd: int | None = None,
        woken: Callable[[], bool] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> int:
        """Run ``holdfast ARGV`` there and hand on what it writes as it comes; as `Transport.follow`.

        Without an input it ends there when this process does, however that comes about: what it would read is held open
        here.
        """
        wake = (wake_fd, woken)
        if stdin_fd is not None:
            self._prove()
            return self._follow(argv, out=out, err=err, read_fd=stdin_fd, held=False, wake=wake, env=env)
        with _holding_input() as read_fd:
            return self._follow(argv, out=out, err=err, read_fd=read_fd, held=True, wake=wake, env=env)

    def _follow(
        self,
        argv: Sequence[str],
        *,
        out: Callable[[bytes], None],
        err: Callable[[bytes], None],
        read_fd: int,
        held: bool,
        wake: tuple[int | None, Callable[[], bool] | None],
        env: Mapping[str, str] | None,
    ) -> int:
        for _ in range(TRIES):
            meetings, facts = self._meetings, self.ensure()
            mark = make_mark()
            beginning, last = _HeldBeginning(mark, out), bytearray()

            def say(data: bytes, last: bytearray = last) -> None:
                last[:] = (last + data)[-LAST_BYTES:]
                err(data)

            code = self.transport.follow(
                bootstrap.RUN_SCRIPT,
                self._build_words(facts, argv, env, mark, held=held),
                out=beginning.take,
                err=say,
                stdin_fd=read_fd,
                wake_fd=wake[0],
                woken=wake[1],
            )
            if not beginning.is_absent():
                changed = self._has_changed_python(facts, meetings, code, bytes(last), silent=beginning.is_empty)
                if changed and held:
                    continue
                self._seen = True
                self._mend_if_broken(code, bytes(last))
                return code
            self._meet_again(meetings)
        raise self._vanishing()

    def open_terminal(self, argv: Sequence[str]) -> int:
        """Run ``holdfast ARGV`` there on this process's terminal; its exit code."""
        self._prove()
        words = self._build_words(self.ensure(), argv, None, make_mark())
        return self.transport.open_terminal(bootstrap.RUN_SCRIPT, words)

    # ----------------------------------------------------------------------------------------------------- meeting

    def _get_known(self) -> BoxFacts | None:
        """What is known of the box, if this bundle was seen there, below the runs root that the place has now."""
        facts, root = self.facts, self.place.root
        if facts is None or facts.bundle != self._get_bundle().hash:
            return None
        stated = root if root is None or not root.startswith("~/") else f"{facts.home}/{root[2:]}"
        return facts if stated is None or os.path.normpath(stated) == os.path.normpath(facts.root) else None

    def _get_bundle(self) -> Bundle:
        if self._bundle is None:
            self._bundle = get_own_bundle()
        return self._bundle

    def _prove(self) -> None:
        """Have the bundle there before something is sent that can be sent only once."""
        for _ in range(TRIES):
            if self._seen:
                return
            meetings, facts = self._meetings, self.ensure()
            mark = make_mark()
            words = (*choose_words(self.place, facts, self._find_directory(facts)), mark)
            done = self.transport.run(bootstrap.LOOK_SCRIPT, words, limit_s=CONTACT_LIMIT_S)
            if done.out.startswith(mark.encode()):
                self._meet_again(meetings)
            else:
                self._seen = True

    def _meet_again(self, meetings: int) -> None:
        """The bundle was not there after so many meetings: look again, unless another thread has since."""
        with self._meeting:
            if self._meetings == meetings:
                self._meet()

    def _has_changed_python(self, facts: BoxFacts, meetings: int, code: int, said: bytes, *, silent: bool) -> bool:
        """Whether another interpreter was found after a failure that may be the interpreter's: nothing of ours had run.

        A job, too, may end so: then the interpreter works, and a meeting finds the same one. `silent`: nothing was put
        out.
        """
        failed = (code in UNSTARTED_CODES and silent) or (code != 0 and any(mark in said for mark in BROKEN_PYTHON))
        if not failed or self.place.python is not None:
            return False
        try:
            self._meet_again(meetings)
        except PlaceError:
            # What was answered is the answer, whatever comes of another look.
            return False
        return self.facts is not None and self.facts.python != facts.python

    def _mend_if_broken(self, code: int, said: bytes) -> None:
        """After a failure that is our own by its words: a job, too, may end with these codes. As `_mend`."""
        if code in FAULTY_CODES and any(mark in said for mark in FAULTS):
            with suppress(PlaceError):  # what was answered is the answer, whatever comes of another look
                self._mend()

    def _mend(self) -> None:
        """Was the bundle damaged? What a command had done until then is not known.

        Raises:
            StorageError: it was, and has been replaced.
        """
        with self._meeting:
            _, damage = self._meet()
        if damage:
            raise StorageError(
                f"place {self.place.name}: holdfast's own files there were damaged ({damage}) and have been replaced",
                hint="repeat the command",
            )

    def _meet(self, *, accepts_empty: bool = False) -> tuple[BoxFacts, str]:
        """Find an interpreter, push the bundle when it is not there or damaged, and measure the box.

        Answers why it was pushed, too; empty when it was there.

        Raises:
            StorageError: nothing is in the runs root, and runs there had not ended (unless `accepts_empty`).
        """
        packing = threading.Thread(target=self._pack)
        packs = self._get_known() is None
        if packs:
            packing.start()  # while the box looks
        try:
            answer = contact(self.place, self.transport, self._get_bundle(), self.facts, push=False)
        finally:
            if packs:
                packing.join()
        missing = answer.get("missing")
        if missing is not None:
            if answer.get("empty") is True and not accepts_empty:
                self._refuse_vanished(one_line(str(answer.get("root")), LONGEST_SEEN))
            answer = contact(self.place, self.transport, self._get_bundle(), self.facts, push=True)
        facts = self._keep(answer)
        self._meetings += 1
        return facts, "" if missing is None else one_line(str(missing), LONGEST_SEEN)

    def _refuse_vanished(self, root: str) -> None:
        """A run that is begun on a mount point would be hidden as soon as the file system is back."""
        runs, name = self._list_unfinished(), self.place.name
        if runs:
            which = runs[0] if len(runs) == 1 else f"{runs[0]} and {len(runs) - 1} more"
            raise StorageError(
                f"place {name}: nothing is in its runs root {root}, where {which} had not ended, as far as is known: "
                "its file system is not mounted, or it was emptied",
                hint=f"have it mounted there; if what was in it is gone for good: holdfast place probe {name}",
                details={"place": name},
            )

    def _pack(self) -> None:
        try:
            self._get_bundle().data  # noqa: B018 - it is kept
        except HoldfastError:
            return  # whoever needs it will see

    def _keep(self, answer: dict[str, object]) -> BoxFacts:
        """Make facts of a probe's answer: the desk adds its own time, and how far the box's clock is from it."""
        now = time.time()
        try:
            facts = wire.decode(BoxFacts, {**answer, "measured_at": format_utc(now)})
        except wire.WireError as error:
            raise InternalError(f"place {self.place.name}: the probe's answer is not understood: {error}") from error
        if facts.bundle != self._get_bundle().hash:
            raise InternalError(f"place {self.place.name}: another bundle answered than was asked for")
        ahead = round(facts.clock_epoch_s - now, 3)
        warnings = facts.warnings
        if abs(ahead) > CLOCK_TOLERANCE_S:
            way = "ahead of" if ahead > 0 else "behind"
            # Every time that it states is off by as much, so that comes first.
            warnings = (f"its clock is {abs(ahead):.0f} s {way} this machine's", *warnings)
        self.facts = replace(facts, clock_ahead_s=ahead, warnings=warnings)
        self._remember(self.facts)
        return self.facts

    # ------------------------------------------------------------------------------------------------------- words

    def _build_words(
        self, facts: BoxFacts, argv: Sequence[str], env: Mapping[str, str] | None, mark: str, *, held: bool = False
    ) -> tuple[str, ...]:
        # An internal entry answers a program, and what it starts must not inherit the variable.
        told = {} if ENTRY in argv[:1] else {"HOLDFAST_PLACE": self.place.name}
        pieces = bootstrap.build_call(argv, {**told, **(env or {})}, held=held)
        if len(pieces) * bootstrap.PIECE > LONGEST_LINE - 2 * bootstrap.PIECE:
            raise UsageError(
                f"the command line is too long to be sent to {self.place.name}", hint="put it into a file or a script"
            )
        return *choose_words(self.place, facts, self._find_directory(facts)), mark, *pieces

    def _find_directory(self, facts: BoxFacts) -> str:
        return f"{bundles_dir(facts.root, facts.uid)}/{self._get_bundle().hash}"

    def _vanishing(self) -> StorageError:
        return StorageError(
            f"place {self.place.name}: what holdfast puts below its runs root is removed as soon as it is there",
            hint="name another directory as `root` in places.toml, which nobody cleans",
        )


@contextmanager
def _holding_input() -> Iterator[int]:
    """The read end of a pipe whose write end nobody but this process has."""
    read_fd, write_fd = os.pipe()
    try:
        yield read_fd
    finally:
        os.close(read_fd)
        os.close(write_fd)


class _HeldBeginning:
    """Hands output on once it cannot be the mark any more."""

    def __init__(self, mark: str, out: Callable[[bytes], None]) -> None:
        self._mark = mark.encode()
        self._out = out
        self._held: bytes | None = b""

    def take(self, data: bytes) -> None:
        if self._held is None:
            self._out(data)
            return
        self._held += data
        if not self._held.startswith(self._mark[: len(self._held)]):
            held, self._held = self._held, None
            self._out(held)

    @property
    def is_empty(self) -> bool:
        """Whether nothing came at all."""
        return self._held == b""

    def is_absent(self) -> bool:
        """Whether the bundle was not there; a beginning that was held for nothing is handed on."""
        if self._held is None:
            return False
        if self._held.startswith(self._mark):
            return True
        if self._held:
            self._out(self._held)
        return False
