"""`SshTransport`: calls to one box through ssh(1), which share one connection where that can be had.

Who shares is ssh's own business: a call whose shared connection is dead, or full (MaxSessions), opens one of its own.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.model.errors import CutOff, HoldfastError, Unreachable
from holdfast.model.place import Place
from holdfast.transport.calls import Calls
from holdfast.transport.child import Child, Ending, Late, Silence
from holdfast.transport.frame import build_line, build_plain_line, make_nonce

from .classify import JUMP, explain
from .command import Sharing, Timing, build_options, choose_environment, find_program, target
from .config import SshConfig, read_config
from .control import find_socket
from .silence import SilenceCheck

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class SshTransport(Calls):
    """Commands through the login shell of one account of one box. Make one for a place, and keep it."""

    def __init__(self, place: Place, *, timing: Timing | None = None) -> None:
        """Nothing is started before the first call."""
        super().__init__()
        self.name = f"ssh {place.name}"
        self.place = place.name
        self._place = place
        self._timing = timing or Timing()
        self._reading = threading.Lock()
        self._config: SshConfig | None = None
        self._avoids_own = False
        """Whether the user's own connection was found dead: calls take one of ours."""

    def read_config(self) -> SshConfig:
        """What ``ssh -G`` says of this place; asked once.

        Raises:
            Unreachable, Refused: as of `config.read_config`.
        """
        with self._reading:
            if self._config is None:
                self._config = read_config(self._place)
            return self._config

    def build_argv(self, line: str) -> list[str]:
        """The command line of one call.

        Raises:
            Unreachable, Refused: as of `read_config`.
        """
        return self._build_argv(line, self._share(self.read_config()))

    def _build_argv(self, line: str, sharing: Sharing) -> list[str]:
        options = [*build_options(self._timing, sharing), *self.read_config().overrides]
        return [find_program(), *options, *target(self._place), line]

    def login(self) -> int:
        """Log in on this terminal, where ssh may ask; answers ssh's exit code. Other calls then share the connection.

        Raises:
            Unreachable: nowhere to put the shared connection, or no ssh client.
            CutOff: the user's own connection is dead, and ssh would wait for it.
            Refused: as of `read_config`.
        """
        sharing = self._share(self.read_config())
        if sharing.path is None:
            raise Unreachable(
                f"{self.place}: there is no short private directory for a connection to share",
                hint="set XDG_RUNTIME_DIR to one, or ControlPath in ~/.ssh/config",
                details={"place": self.place, "why": "sharing"},
            )
        if _is_unwatched(sharing, self.read_config()):
            try:
                subprocess.run(
                    self._build_question(sharing),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=self._timing.answer_s,
                    check=False,
                    env=choose_environment(),
                    start_new_session=True,
                )
            except subprocess.TimeoutExpired:
                raise self._explain_silence() from None
        options = build_options(self._timing, sharing, for_login=True)
        return subprocess.call([find_program(), *options, *target(self._place), "exit 0"])

    def open_terminal(self, script: str, words: Sequence[str] = ()) -> int:
        """As of `base.Transport`; 255 also when there was no connection, of which ssh has told then.

        Raises:
            Unreachable, Refused: as of `read_config`.
        """
        argv = self.build_argv(build_plain_line(script, words))
        # The last of -T and -t counts; twice: whatever this process's input is.
        return subprocess.call([argv[0], *argv[1 : argv.index("--")], "-tt", *argv[argv.index("--") :]])

    def disconnect(self) -> None:
        """End the connection that calls share, where it is ours; the user's own stays. What cannot be ended ends idle.

        Source: ssh(1), -O exit: calls that go on over it are cut off.
        """
        with contextlib.suppress(HoldfastError, OSError, subprocess.TimeoutExpired):
            sharing = self._share(self.read_config())
            if sharing.path is None or sharing.is_users or not os.path.exists(sharing.path):
                return
            subprocess.run(
                [find_program(), *build_options(self._timing, sharing), "-O", "exit", *target(self._place)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timing.connect_s,
                check=False,
                env=choose_environment(),
            )

    def _start(self, line: str, nonce: str, stdin: int) -> Child:
        return self._launch(self.build_argv(line), nonce, stdin)

    def _launch(self, argv: list[str], nonce: str, stdin: int) -> Child:
        try:
            return Child(argv, nonce, stdin=stdin, env=choose_environment(), group=False)
        except OSError as error:
            raise Unreachable(
                f"{self.place}: the program {argv[0]!r} cannot be started: {error.strerror}",
                hint="free some processes or memory here, and try again",
                details={"place": self.place, "why": "client"},
            ) from error

    def _explain(self, ending: Ending) -> HoldfastError:
        error = explain(self._place, ending)
        return (self._ask_jump() or error) if error.details["why"] == JUMP else error

    def _watch_silence(self) -> AbstractContextManager[Silence | None]:
        config = self.read_config()
        sharing = self._share(config)
        if not _is_unwatched(sharing, config):
            return contextlib.nullcontext()
        timing = self._timing
        quiet_s = timing.alive_s * (timing.alive_count + 1)
        return SilenceCheck(self._build_question(sharing), quiet_s=quiet_s, answer_s=timing.answer_s)

    def _build_question(self, sharing: Sharing) -> list[str]:
        """A call that ends with any answer: a port where nothing listens. A command would wait for the login shell."""
        options = ["-W", "127.0.0.1:1", *build_options(self._timing, sharing), *self.read_config().overrides]
        return [find_program(), *options, *target(self._place)]

    def _explain_silence(self) -> CutOff:
        self._avoids_own = True
        port = f"-p {self._place.port} " if self._place.port is not None else ""
        return CutOff(
            f"{self.place}: nothing comes over your own ssh connection to it, and another call over it got no answer",
            hint=f"`ssh -O exit {port}{self._place.host}` ends it; "
            "with ServerAliveInterval in ~/.ssh/config ssh does so by itself",
            details={"place": self.place, "why": "cut_off"},
        )

    def _ask_jump(self) -> HoldfastError | None:
        """Connect once more, unshared: only then does ssh pass on what a jump host's ssh says.

        Source: sshconnect.c, ssh_proxy_connect: with ControlPersist its standard error is /dev/null.
        """
        nonce = make_nonce()
        child = self._launch(self._build_argv(build_line(nonce, "true", ()), Sharing()), nonce, subprocess.DEVNULL)
        with contextlib.closing(child):
            try:
                child.serve(_drop, _drop, deadline=time.monotonic() + 2 * self._timing.connect_s)
            except Late:
                return None
            return explain(self._place, child.ending()) if child.code is None else None

    def _share(self, config: SshConfig) -> Sharing:
        if config.own_control_path and not self._avoids_own:
            return Sharing(config.own_control_path, is_users=True)
        # Calls that ssh would make alike share a connection, whichever command of the desk they come from.
        return Sharing(find_socket(f"{find_program()}\n{self._place.host}\n{config.text}"))


def _is_unwatched(sharing: Sharing, config: SshConfig) -> bool:
    """Whether a call goes through a connection that the user has opened without having ssh watch it."""
    watched = config.values.get("serveraliveinterval", "0") != "0"
    return sharing.is_users and not watched and sharing.path is not None and os.path.exists(sharing.path)


def _drop(data: bytes) -> None:
    """Nobody asked for it."""
