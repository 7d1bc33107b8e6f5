"""The first program of a job in a container whose image has Python 3: ``python3 -I -S enter.py COMMAND...``.

Runs under the image's interpreter, from Python 3.5 on: no import of ours, no newer syntax, and no postponed
annotations, which came with 3.7. Waits at the gate, checks that the cards are those of the lease (LEASE-09, CTR-08),
runs the command as its child, reaps what is orphaned when it is process 1, and writes down how the command ended, which
a runtime would say as one number only. Ends the command when nobody outside is left who could (`HELD`).
"""

import fcntl
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

ROOM = "/run/holdfast"
EXIT_MISMATCH, EXIT_NO_GO = 78, 125
BEGUN = "begun"
"""Said behind the gate: who opened it may have been killed before that was on record."""
MEMORY_KILLS = "memory-kills"
"""Said with a number when the kernel killed inside for want of memory."""
TOLD = "told"
"""Said with the time when somebody, not holdfast, told the container to end: docker stop, podman stop."""
GUESSED = "guessed"
"""Said with the Python that was asked for the cards where the command may run under another one."""
LOOK_S = 0.05
ANSWER_WITHIN_S = 60.0
"""Importing torch from a cold disk takes tens of seconds; the start has 120 s."""
GRACE_S = 5.0
"""Between TERM and KILL of a command that was left behind: what a keeper without a supervisor gives, too."""
MEMORY_EVENTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""Of our own control group, as the runtimes show it inside. Source: cgroups(7); podman-create(1), --cgroupns."""
SHELLS = ("sh", "bash", "dash", "ash", "ksh", "zsh")
CARDS_ARE = "HOLDFAST-CARDS "
SAY_CARDS = "printf '\\n%s%s\\n' '" + CARDS_ARE + '\' "${CUDA_VISIBLE_DEVICES-}"'
SHELL_WITHIN_S = 20.0
"""Profiles that load an environment of packages take seconds."""
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
HEARD = (*FORWARDED, signal.SIGCHLD, signal.SIGIO)
FOREVER_S = 1e6


def say(words: str) -> None:
    """Tell the supervisor."""
    with open(ROOM + "/said", "a") as file:
        file.write(words + "\n")


def read_line(name: str) -> str:
    """The first line of a file of the room; of the gate, when it is opened."""
    try:
        with open(ROOM + "/" + name) as file:
            return file.readline().strip()
    except OSError:
        return ""


def find_command(name: str) -> "str | None":
    """Where the image has a program."""
    if "/" in name:
        return name if os.path.exists(name) else None
    for directory in os.get_exec_path():
        path = os.path.join(directory, name)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return None


def find_mismatch() -> str:
    """What differs from the lease; empty when nothing does."""
    expected, seen = read_line("cards"), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if expected != seen:
        return "CUDA_VISIBLE_DEVICES is {!r} in the container, leased is {!r}".format(seen, expected)
    nodes = read_line("nodes")
    if not nodes:
        return ""
    wanted = set() if nodes == "none" else set(nodes.split())
    there = {name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()}
    if wanted - there:
        return "{} is not in the container".format(", ".join("/dev/" + name for name in sorted(wanted - there)))
    if there - wanted:
        return "{} is in the container and not leased".format(
            ", ".join("/dev/" + name for name in sorted(there - wanted))
        )
    return ""


def find_overwritten(command: "list[str]") -> str:
    """How the files that a command's shell reads first change the cards (CTR-09); empty when they do not.

    A login shell and an interactive one read the image's (``/etc/profile``), bash also what BASH_ENV names. The same
    shell is asked, with nothing to run but that.
    """
    for words in (command, leave_setup_out(command)):
        path = find_command(words[0])
        reading = list_reading(words)
        if path is None or not reading:
            continue
        import subprocess  # seldom needed, and slow to load

        asked = [path, *reading[1:], "-c", SAY_CARDS]
        try:
            child = subprocess.Popen(
                asked,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            continue
        try:
            told = child.communicate(timeout=SHELL_WITHIN_S)[0].decode("utf-8", "replace").splitlines()
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            continue
        seen = [line[len(CARDS_ARE) :] for line in told if line.startswith(CARDS_ARE)]
        if seen and seen[-1] != os.environ.get("CUDA_VISIBLE_DEVICES", ""):
            return "CUDA_VISIBLE_DEVICES is {!r} behind {}: a file that this shell reads first has changed it".format(
                seen[-1][:200], " ".join(reading)
            )
    return ""


def list_reading(command: "list[str]") -> "list[str]":
    """The shell of a command with the options by which it reads files first; none where it reads none.

    Source: bash(1), "Invocation"; zsh(1), "Startup/shutdown files": zshenv by every one.
    """
    name = os.path.basename(command[0])
    if name not in SHELLS:
        return []
    found, index = [], 1
    while index < len(command) and command[index][:1] in ("-", "+") and command[index] not in ("-", "--"):
        word = command[index]
        if word == "--login":
            found.append("-l")
        elif word == "--noprofile":
            found.insert(0, word)
        elif word in ("--rcfile", "--init-file"):
            index += 1
        elif word[1:2] != "-":
            found += ["-" + letter for letter in "li" if letter in word[1:] and word[0] == "-"]
            index += word[-1] in "oO"
        index += 1
    always = name == "zsh" or (name == "bash" and os.environ.get("BASH_ENV"))
    return [command[0], *found] if always or "-l" in found or "-i" in found else []


def leave_setup_out(command: "list[str]") -> "list[str]":
    """The command behind the lines of setup; as `core.job.setup` puts them before it."""
    return command[4:] if command[:2] == ["sh", "-c"] and command[3:4] == ["setup"] and len(command) > 4 else command


def find_python(command: "list[str]") -> "list[str]":
    """The words that run the Python of a command, where its name or its first line tells; else none."""
    path = find_command(command[0])
    if path is None:
        return []
    name = os.path.basename(command[0])
    if name.startswith("python"):
        return [path]
    if name == "env":
        return find_behind_env(command)
    try:
        with open(path, "rb") as file:
            first = file.read(256).split(b"\n", 1)[0]
    except OSError:
        return []
    words = first[2:].decode("utf-8", "replace").split() if first[:2] == b"#!" else []
    if words and os.path.basename(words[0]) == "env":
        return find_behind_env([words[0]] + [word for word in words[1:] if word != "-S"])
    return words[:1] if words and os.path.basename(words[0]).startswith("python") else []


def find_behind_env(words: "list[str]") -> "list[str]":
    """As `find_python`, of ``env`` with the variables that it sets and takes away. Source: env(1)."""
    index = 1
    while index < len(words) and (words[index][:1] == "-" or "=" in words[index]):
        if words[index] not in ("-", "-i", "-u", "--") and "=" not in words[index]:
            return []
        index += 2 if words[index] == "-u" else 1
    if index >= len(words) or not os.path.basename(words[index]).startswith("python"):
        return []
    return words[: index + 1]


def ask_torch(command: "list[str]") -> None:
    """Where the supervisor wants it: have the command's own Python say which cards torch sees (CTR-08).

    Where it cannot be told, or where lines of setup may choose another one, it is the image's, and that is said.
    """
    if not os.path.exists(ROOM + "/framework.py"):
        return
    inner = leave_setup_out(command)
    python = find_python(inner)
    if not python or inner is not command:
        python = python or ["python3"]
        say("{} {}".format(GUESSED, python[-1]))
    with open(ROOM + "/framework", "wb") as out:
        import subprocess  # seldom needed, and slow to load

        with open(ROOM + "/framework.py") as file:
            asked = [*python, "-c", file.read()]
        try:
            child = subprocess.Popen(asked, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/")
            child.wait(ANSWER_WITHIN_S)
        except OSError as error:
            out.write("{}: {}\n".format(python[0], error.strerror).encode())
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            out.write("no answer within {:g} s\n".format(ANSWER_WITHIN_S).encode())
        out.seek(0, os.SEEK_END)
        out.write(b"\nanswered\n")


def become(path: str, command: "list[str]") -> None:
    """In the child: the command, with default dispositions."""
    try:
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execv(path, command)
    except OSError as error:
        sys.stderr.write("holdfast: {}: {}\n".format(path, error.strerror))
        sys.stderr.flush()
    os._exit(126)


def others_live() -> bool:
    """Whether anything but the init and us is in this PID namespace."""
    return any(name.isdigit() and int(name) not in (1, os.getpid()) and is_living(name) for name in os.listdir("/proc"))


def is_living(name: str) -> bool:
    """Whether a process of /proc runs."""
    try:
        with open("/proc/" + name + "/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False


def main(command: "list[str]") -> int:
    """Run the command behind the gate; its exit code."""
    say("python {}.{}".format(*sys.version_info[:2]))
    path = find_command(command[0])
    if path is None:
        say("absent " + command[0])
        return 127
    if not os.access(path, os.X_OK):
        say("refused " + path)
        return 126
    ask_torch(command)
    held = watch_outside()
    say("ready")
    if read_line("gate") != "go":
        return EXIT_NO_GO
    say(BEGUN)
    mismatch = find_mismatch() or find_overwritten(command)
    if mismatch:
        say("mismatch " + mismatch)
        return EXIT_MISMATCH
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    job = os.fork()
    if job == 0:
        become(path, command)
    return wait_for(job, held)


def watch_outside() -> int:
    """Have SIGIO sent to us when nobody outside holds `HELD` any more; its descriptor, -1 where it cannot be watched.

    Until the command runs that ends us, which is all that is to be done: by a handler, since process 1 lives on under
    the default action. Source: fcntl(2), O_ASYNC; pipe(7); pid_namespaces(7).
    """
    try:
        held = os.open(ROOM + "/held", os.O_RDONLY | os.O_NONBLOCK)
        signal.signal(signal.SIGIO, lambda *_: os._exit(EXIT_NO_GO) if is_left(held) else None)
        fcntl.fcntl(held, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(held, fcntl.F_SETFL, fcntl.fcntl(held, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        return -1
    if is_left(held):
        sys.exit(EXIT_NO_GO)
    return held


def is_left(held: int) -> bool:
    """Whether nobody outside lives who could end us."""
    try:
        return os.read(held, 64) == b""
    except OSError:
        return False


def count_memory_kills() -> int:
    """How often the kernel killed for want of memory in our control group, which goes with its counters when we end."""
    for path in MEMORY_EVENTS:
        try:
            with open(path) as file:
                return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
        except (OSError, ValueError, IndexError):
            continue
    return 0


def wait_for(job: int, held: int) -> int:
    """Reap until the job has ended; its exit code. In a stop the rest of the tree keeps its time to save.

    Who stops a run from outside signals each of its processes (si_pid is 0 then), so nothing is handed on that comes
    from there, unless we are process 1, which holdfast leaves out; what comes from an init is for the job.
    """
    stopping = False
    kill_at = 0.0
    status = None
    while status is None:
        heard = signal.sigtimedwait(HEARD, GRACE_S if kill_at else FOREVER_S)
        if kill_at and time.monotonic() >= kill_at:
            os.kill(job, signal.SIGKILL)
        elif heard is not None and heard.si_signo == signal.SIGIO:
            if held >= 0 and not kill_at and is_left(held):
                stopping, kill_at = True, time.monotonic() + GRACE_S
                os.kill(job, signal.SIGTERM)
        elif heard is not None and heard.si_signo != signal.SIGCHLD:
            stopping = True
            if heard.si_signo == signal.SIGTERM and heard.si_pid == (0 if os.getpid() == 1 else 1):
                # To the first process of the container, which holdfast leaves out.
                say("{} {:.3f}".format(TOLD, time.time()))
            if heard.si_pid != 0 or os.getpid() == 1:
                os.kill(job, heard.si_signo)
        for pid, ended in reap():
            if pid == job:
                status = ended
    leave_word(status)
    while stopping and others_live() and not (kill_at and time.monotonic() >= kill_at):
        time.sleep(LOOK_S)
        list(reap())
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def leave_word(status: int) -> None:
    """Write down how the command ended, and what only this control group knows."""
    words = "signal {}{}".format(os.WTERMSIG(status), " core" if os.WCOREDUMP(status) else "")
    if os.WIFEXITED(status):
        words = "exit {}".format(os.WEXITSTATUS(status))
    kills = count_memory_kills()
    if kills:
        say("{} {}".format(MEMORY_KILLS, kills))
    with open(ROOM + "/status", "w") as file:
        file.write(words + "\n")


def reap() -> "Iterator[tuple[int, int]]":
    """Each child that has ended, with its status."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
