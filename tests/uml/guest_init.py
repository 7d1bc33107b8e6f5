"""Process 1 inside the user-mode Linux guest: mounts, one payload, its result, power off.

Owns the guest from the kernel's hand-over to `reboot(2)`. It reads one JSON file written by `tests.uml.machine` (its
path is the first argument; the kernel appends words of its own behind it, which are ignored), builds the file tree
and the cgroup tree described there, starts the payload in a session of its own, copies the payload's output to the
host chunk by chunk (each chunk forced out with fdatasync, so that the host can read it while the guest runs and still
has it after a power cut), reaps orphans like any init, writes `result.json`, and powers off.

With `systemd` in the request it prepares the same machine and then becomes systemd, which starts D-Bus, the login
manager and one service: this file again, as the payload's supervisor, with `--service` behind the request. The payload
is then root's; it opens login sessions through PAM (`runuser -l`) as it needs them.

Invariants: the root file system stays read-only; the only writable host paths are those mounted from the request;
process 1 never exits (that would be a kernel panic), whatever goes wrong is written as `init_error` and the guest
powers off. It must not know holdfast: it runs with `python -I -S` and imports the standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import pwd
import select
import signal
import sys
import traceback
from typing import Any, NoReturn

# Source: include/uapi/linux/mount.h and include/uapi/linux/reboot.h of Linux 6.1.
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_BIND = 4096
POWER_OFF = 0x4321FEDC

# Source: systemd 252, sysctl.d/50-default.conf: what Debian and Ubuntu machines run with.
DISTRIBUTION_SYSCTLS = {
    "fs/protected_hardlinks": "1",
    "fs/protected_symlinks": "1",
    "fs/protected_regular": "2",
    "fs/protected_fifos": "1",
}
V1_HIERARCHIES = ("memory", "cpu,cpuacct", "pids", "freezer", "blkio", "devices")
V2_ROOT = "/sys/fs/cgroup"

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """Mount a file system; the target directory is made when it is missing.

    Raises:
        OSError: the kernel refused; the message names source, target and kind.
    """
    if not os.path.exists(target):
        os.makedirs(target)
    if _libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()) != 0:
        code = ctypes.get_errno()
        msg = f"mount {kind} {source} on {target} ({options}): {os.strerror(code)}"
        raise OSError(code, msg)


def write_text(path: str, text: str) -> None:
    """Write a kernel control file or a plain one, in one write."""
    with open(path, "w") as file:
        file.write(text)


def mount_basics(request: dict[str, Any]) -> None:
    """Mount proc, sysfs, the private tmpfs directories, the host's paths, the disk, then the caller's own mounts."""
    mount("proc", "/proc", "proc", options=request["proc_options"])
    mount("sysfs", "/sys", "sysfs")
    if not os.path.ismount("/dev"):
        mount("devtmpfs", "/dev", "devtmpfs")
    for path, mode in request["private"]:
        mount("tmpfs", path, "tmpfs", MS_NOSUID, f"mode={mode}")
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID, "mode=1777")
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID, "ptmxmode=0666,mode=0620")
    os.makedirs("/run/lock")
    os.chmod("/run/lock", 0o1777)
    for name in ("fd", "stdin", "stdout", "stderr"):
        tail = "" if name == "fd" else "/" + str(("stdin", "stdout", "stderr").index(name))
        if not os.path.lexists(f"/dev/{name}"):
            os.symlink("/proc/self/fd" + tail, f"/dev/{name}")
    for path, writable in request["host_paths"]:
        mount("none", path, "hostfs", 0 if writable else MS_RDONLY, path)
    if request["disk"] is not None:
        mount("/dev/ubda", request["disk"], "ext4", options="commit=300")
        os.chmod(request["disk"], 0o1777)
    for kind, path, options, read_only in request["mounts"]:
        mount(kind, path, kind, MS_RDONLY if read_only else 0, options)


def prepare_accounts(request: dict[str, Any]) -> None:
    """Give the test accounts a passwd and group entry (bind mounts over the read-only files) and a home of their
    own."""
    for name in ("passwd", "group"):
        with open(f"/etc/{name}") as file:
            lines = file.read().splitlines()
        known = {line.split(":")[2] for line in lines if line.count(":") >= 3}
        for account, uid in request["accounts"]:
            entry = f"{account}:x:{uid}:{uid}::/home/{account}:/bin/sh" if name == "passwd" else f"{account}:x:{uid}:"
            lines += [] if str(uid) in known else [entry]
        write_text(f"/run/uml-{name}", "\n".join(lines) + "\n")
        os.chmod(f"/run/uml-{name}", 0o644)
        mount(f"/run/uml-{name}", f"/etc/{name}", "none", MS_BIND)
    for _, uid in request["accounts"]:
        home = pwd.getpwuid(uid).pw_dir
        if home.startswith("/home/"):
            os.makedirs(home, exist_ok=True)
            os.chown(home, uid, uid)
            os.chmod(home, 0o700)


def bring_up_loopback() -> None:
    """Set the flag UP on `lo` (SIOCSIFFLAGS, netdevice(7))."""
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))


def enable_controllers(path: str) -> None:
    """Enable every controller that `path` has for its children."""
    with open(f"{path}/cgroup.controllers") as file:
        names = file.read().split()
    write_text(f"{path}/cgroup.subtree_control", " ".join("+" + name for name in names))


def build_v2(uid: int, *, delegated: bool) -> list[str]:
    """Mount cgroup v2 and make the payload's place as systemd would.

    Not delegated: a session scope owned by root. Delegated: the user owns `user@<uid>.service` (directory,
    cgroup.procs, cgroup.threads, cgroup.subtree_control, as cgroups(7) says) and has made the levels below with their
    own hands.

    Returns:
        The cgroup directories in which the payload starts: one.
    """
    mount("cgroup2", V2_ROOT, "cgroup2", MS_NOSUID | MS_NODEV, "nsdelegate,memory_recursiveprot")
    path = V2_ROOT
    for name in ("user.slice", f"user-{uid}.slice"):
        enable_controllers(path)
        path = f"{path}/{name}"
        os.mkdir(path)
    enable_controllers(path)
    if not delegated:
        os.mkdir(f"{path}/session-1.scope")
        return [f"{path}/session-1.scope"]
    path = f"{path}/user@{uid}.service"
    os.mkdir(path)
    for name in ("", "/cgroup.procs", "/cgroup.threads", "/cgroup.subtree_control"):
        os.chown(path + name, uid, uid)
    os.seteuid(uid)
    try:
        enable_controllers(path)
        os.mkdir(f"{path}/app.slice")
        enable_controllers(f"{path}/app.slice")
        os.mkdir(f"{path}/app.slice/payload.scope")
    finally:
        os.seteuid(0)
    return [f"{path}/app.slice/payload.scope"]


def build_v1(uid: int, *, delegated: bool) -> list[str]:
    """Mount each v1 hierarchy and make one directory in each for the payload, owned by the user when delegated.

    Returns:
        The payload's directory in each hierarchy.
    """
    mount("tmpfs", V2_ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    places = []
    for controllers in V1_HIERARCHIES:
        root = f"{V2_ROOT}/{controllers}"
        mount("cgroup", root, "cgroup", MS_NOSUID | MS_NODEV, controllers)
        for name in controllers.split(",") if "," in controllers else ():
            os.symlink(controllers, f"{V2_ROOT}/{name}")
        place = f"{root}/user-{uid}"
        os.mkdir(place)
        if delegated:
            for name in ("", *os.listdir(place)):
                os.chown(f"{place}/{name}", uid, uid)
        places.append(place)
    return places


def build_cgroups(request: dict[str, Any]) -> list[str]:
    """Build the cgroup tree that the request names and return the payload's places in it."""
    kind, uid, delegated = request["cgroups"], request["uid"], request["delegated"]
    if kind == "v2":
        return build_v2(uid, delegated=delegated)
    places = [] if kind == "none" else build_v1(uid, delegated=delegated)
    if kind == "hybrid":
        mount("cgroup2", f"{V2_ROOT}/unified", "cgroup2", MS_NOSUID | MS_NODEV)
    return places


def start_payload(request: dict[str, Any], places: list[str], outputs: tuple[int, int]) -> int:
    """Fork the payload: own session, own cgroup, the account asked for, clean signals; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.setsid()
        for place in places:
            write_text(f"{place}/cgroup.procs", "0")
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(outputs[0], 1)
        os.dup2(outputs[1], 2)
        if request["uid"]:
            account = pwd.getpwuid(request["uid"])
            os.initgroups(account.pw_name, account.pw_gid)
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
        os.chdir(request["cwd"])
        os.umask(0o022)
        home = pwd.getpwuid(request["uid"]).pw_dir
        os.execvpe(request["argv"][0], request["argv"], {"HOME": home, **request["env"]})
    except BaseException:  # noqa: BLE001 - the child must never return into process 1's code
        os.write(2, traceback.format_exc().encode())
    os._exit(127)


def drain(source: int, target: int) -> bool:
    """Copy what one non-blocking pipe holds to a host file and force it out; False at end of file."""
    while True:
        try:
            data = os.read(source, 65536)
        except BlockingIOError:
            return True
        if not data:
            return False
        os.write(target, data)
        os.fdatasync(target)


def reap(payload: int) -> int | None:
    """Collect every ended child; returns the payload's raw wait status once it is among them."""
    status = None
    while True:
        try:
            pid, raw = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == payload:
            status = raw


def supervise(request: dict[str, Any], places: list[str]) -> int:
    """Run the payload to its end and return its raw wait status; what it left running dies with the power."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
    writers: list[int] = []
    copies: dict[int, int] = {}
    for name in ("stdout", "stderr"):
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reader, False)
        writers.append(writer)
        copies[reader] = os.open(f"{request['record']}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    payload = start_payload(request, places, (writers[0], writers[1]))
    for writer in writers:
        os.close(writer)
    status: int | None = None
    open_pipes = dict(copies)
    while status is None:
        ready, _, _ = select.select([wake_read, *open_pipes], [], [])
        for fd in ready:
            if fd == wake_read:
                os.read(wake_read, 4096)
            elif not drain(fd, open_pipes[fd]):
                del open_pipes[fd]
        status = reap(payload)
    for source, target in open_pipes.items():
        drain(source, target)
    return status


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Prepare the guest, run the payload and describe how it ended."""
    for name, value in DISTRIBUTION_SYSCTLS.items():
        write_text(f"/proc/sys/{name}", value)
    bring_up_loopback()
    prepare_accounts(request)
    places = build_cgroups(request)
    return supervise_and_describe(request, places)


def supervise_and_describe(request: dict[str, Any], places: list[str]) -> dict[str, Any]:
    """Run the payload in the prepared guest and describe how it ended."""
    with open("/proc/uptime") as file:
        ready_s = float(file.read().split()[0])
    status = supervise(request, places)
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
    return {"code": os.waitstatus_to_exitcode(status), "boot_id": boot_id, "ready_s": ready_s}


UNIT_PATH = "/run/guest-units"
DISTRIBUTION_UNITS = "/lib/systemd/system"
COPIED_UNITS = (
    *("dbus.service", "dbus.socket", "user@.service", "user-runtime-dir@.service", "user.slice"),
    *("basic.target", "sysinit.target", "shutdown.target", "sockets.target", "umount.target", "final.target"),
)
LOGIND_UNIT = """[Unit]
Requires=dbus.socket
After=dbus.socket
[Service]
Type=dbus
BusName=org.freedesktop.login1
ExecStart=/lib/systemd/systemd-logind
RuntimeDirectory=systemd/sessions systemd/seats systemd/users systemd/inhibit systemd/shutdown
RuntimeDirectoryPreserve=yes
StateDirectory=systemd/linger
"""
PAYLOAD_UNIT = """[Unit]
Requires=dbus.socket systemd-logind.service
After=dbus.socket systemd-logind.service
[Service]
ExecStart={command}
KillMode=process
StandardOutput=null
StandardError=tty
TTYPath=/dev/console
"""


def become_systemd(request: dict[str, Any], request_path: str) -> NoReturn:
    """Write the few units that a login needs, and exec systemd as process 1 on them alone."""
    for name, value in DISTRIBUTION_SYSCTLS.items():
        write_text(f"/proc/sys/{name}", value)
    bring_up_loopback()
    prepare_accounts(request)
    os.makedirs(UNIT_PATH)
    for name in COPIED_UNITS:
        with open(f"{DISTRIBUTION_UNITS}/{name}") as file:
            write_text(f"{UNIT_PATH}/{name}", file.read())
    command = " ".join([sys.executable, "-I", "-S", os.path.abspath(__file__), request_path, "--service"])
    write_text(f"{UNIT_PATH}/systemd-logind.service", LOGIND_UNIT)
    write_text(f"{UNIT_PATH}/payload.service", PAYLOAD_UNIT.format(command=command))
    write_text(f"{UNIT_PATH}/guest.target", "[Unit]\nRequires=payload.service\n")
    for path, text in request["files"]:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_text(path, text)
    environment = {"SYSTEMD_UNIT_PATH": UNIT_PATH, "SYSTEMD_GENERATOR_PATH": UNIT_PATH, "PATH": request["env"]["PATH"]}
    options = ["--unit=guest.target", "--show-status=no", "--log-target=console", "--log-level=warning"]
    os.execve("/lib/systemd/systemd", ["/sbin/init", *options], environment)


def power_off() -> NoReturn:
    """Write back every dirty page and stop the kernel; the user-mode Linux process on the host ends."""
    os.sync()
    _libc.reboot(POWER_OFF)
    while True:  # reboot(2) does not return here; never fall off the end of process 1
        signal.pause()


def main() -> NoReturn:
    """Read the request, do it, write the result, power off; never return."""
    result: dict[str, Any] = {}
    record = ""
    try:
        with open(sys.argv[1]) as file:
            request = json.load(file)
        record = request["record"]
        if sys.argv[2:3] == ["--service"]:
            result = supervise_and_describe(request, [])
        else:
            mount_basics(request)
            if request["systemd"]:
                become_systemd(request, sys.argv[1])
            result = run(request)
    except BaseException:  # noqa: BLE001 - process 1 reports everything and goes on to power off
        result = {"init_error": traceback.format_exc()}
        print(result["init_error"], flush=True)
    try:
        with open(f"{record}/result.json.new", "w") as file:
            json.dump(result, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(f"{record}/result.json.new", f"{record}/result.json")
    except OSError as error:
        print(f"cannot write the result to {record}: {errno.errorcode.get(error.errno or 0)}: {error}", flush=True)
    power_off()


if __name__ == "__main__":
    main()
