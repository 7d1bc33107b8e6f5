"""What logs say about disks and files. Data only."""

from __future__ import annotations

from holdfast.diagnosis.evidence import LineRole
from holdfast.diagnosis.logs.pattern import END, START, Pattern
from holdfast.model.verdict import FailureClass

_PATH = r"(?:: ['\"]?(?P<path>/[^'\"\s]+))?"

DAMAGED = (
    "a file that it reads is damaged or incomplete: find it by what the error names; of a checkpoint, resume from the "
    "one before, else fetch or write the file again, or leave it out"
)
"""What to do about data that cannot be read as what they should be, where nothing speaks of the disk they lie on."""
CUT_FILE = "storage.cut_file"

STORAGE: tuple[Pattern, ...] = (
    Pattern(
        "disk",
        LineRole.ROOT,
        FailureClass.DISK_FULL,
        ("o space left on device", "Errno 28]", "ENOSPC", "database or disk is full"),
        r"(?:"
        + START
        + r"|error message = ')(?:\[Errno 28\] ?(?:No space left on device)?|[Nn]o space left on device"
        + END
        + r")"
        + _PATH
        + r"|\bENOSPC: no space|(?:;|\bfailed because) No space left on device$|database or disk is full",
        (
            "OSError: [Errno 28] No space left on device: '/data/ckpt.pt'",
            "cp: error writing 'b': No space left on device",
            "[rank1]: OSError: [Errno 28] No space left on device",
            "2026-11-20 10:00:00,123 - ERROR - [Errno 28] No space left on device",
            (
                "OSError: Can't synchronously write data (file write failed: time = x, errno = 28, error "
                "message = 'No space left on device')"
            ),
            "npm ERR! nospc ENOSPC: no space left on device, write",
            "Write on output file failed because No space left on device",
            "docker: failed to register layer: write /opt/x: no space left on device.",
        ),
        ("what `No space left on device` means", "[Errno 280] x", "retries on ENOSPC are on"),
        "errno(3) ENOSPC",
        gotchas=("U6", "U7"),
    ),
    Pattern(
        "disk.checkpoint",
        LineRole.ROOT,
        FailureClass.DISK_FULL,
        ("SaveFailed",),
        r"SaveFailed: the checkpoint of step \d+ was not saved: .{1,1000}? are needed, .{1,60}? are (?:free|left)\b",
        (
            (
                "holdfast.training.errors.SaveFailed: the checkpoint of step 1137 was not saved: /runs/x/checkpoints: "
                "9 MB are needed, 9 MB are free; the earlier checkpoints are untouched"
            ),
            "SaveFailed: the checkpoint of step 3 was not saved: /c: 40 free inodes are needed, 12 are left",
        ),
        (
            "SaveFailed: the checkpoint of step 3 was not saved: /c: Input/output error",
            "9 MB are needed, 9 MB are free",
        ),
        "our own training library, storage.writing",
        gotchas=("U6", "U7"),
    ),
    Pattern(
        "storage.busy",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        ("DirectoryBusy",),
        r"DirectoryBusy: .{1,1000}? is written by ",
        (
            (
                "holdfast.training.errors.DirectoryBusy: /runs/out is written by run 20261129-204500-first-0a1b on vm; "
                "give this one a directory of its own, or wait for that one (holdfast wait 20261129-204500-first-0a1b)"
            ),
            "DirectoryBusy: out is written by another run (process 7 on vm)",
        ),
        ("except DirectoryBusy: wait()", "the file is written by another run"),
        "our own training library, storage.directory_lock",
        "two runs cannot write into one directory of checkpoints: give this one a directory of its own (training.run "
        "with another one, or none), or wait until the run that is named is over (holdfast wait RUN), and start it "
        "again",
    ),
    Pattern(
        "disk.evicted",
        LineRole.ROOT,
        FailureClass.DISK_FULL,
        ("ephemeral",),
        r"low on resource: ephemeral-storage|exceeds? (?:its|the total) local ephemeral storage limit"
        r"|exceeded its local ephemeral storage limit",
        (
            'Container train exceeded its local ephemeral storage limit "1Gi".',
            "Pod ephemeral local storage usage exceeds the total local ephemeral storage limit of containers 1Gi.",
        ),
        ("ephemeral storage limit: 1Gi",),
        "kubernetes, pkg/kubelet/eviction",
        "write to a claim, and set the ephemeral-storage limit",
        ("K8S5",),
    ),
    Pattern(
        "disk.writer",
        LineRole.ROOT,
        FailureClass.DISK_FULL,
        ("iostream error", "PytorchStreamWriter failed", "unexpected pos"),
        (
            r"basic_ios::clear: iostream error|PytorchStreamWriter failed writing"
            r"|\bunexpected pos (?P<at>\d+) vs (?P<expected>\d+)"
        ),
        (
            "terminate called: basic_ios::clear: iostream error",
            "RuntimeError: [enforce fail at inline_container.cc:778] . PytorchStreamWriter failed writing file data/58",
            "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 5632 vs 5526",
        ),
        (
            "PytorchStreamReader failed reading zip archive: failed finding central directory",
            "unexpected position of the token",
        ),
        "torch, caffe2/serialize/inline_container.cc: a short write while saving, which does not say why",
        "see df and df -i of the checkpoint's disk first: these words come from a write that was cut short",
        ("U6",),
    ),
    Pattern(
        "disk.quota",
        LineRole.ROOT,
        FailureClass.DISK_FULL,
        ("quota exceeded", "Errno 122]"),
        START + r"(?:\[Errno 122\]|[Dd]isk quota exceeded" + END + r")(?: Disk quota exceeded)?" + _PATH,
        ("OSError: [Errno 122] Disk quota exceeded: '/home/u/x'", "tar: x: Cannot write: Disk quota exceeded"),
        ("API quota exceeded, waiting", "no Disk quota exceeded so far"),
        "errno(3) EDQUOT",
        "the account's quota is used up, although df shows room: quota -s, then remove or move files",
        ("U6",),
    ),
    Pattern(
        "storage.stale",
        LineRole.ROOT,
        FailureClass.STORAGE_FAULT,
        ("tale ", "Errno 116]"),
        START + r"(?:\[Errno 116\]|[Ss]tale (?:NFS )?file handle" + END + r")(?: Stale file handle)?" + _PATH,
        ("OSError: [Errno 116] Stale file handle: '/nfs/data/x'", "ls: cannot access 'x': Stale NFS file handle"),
        ("Stale locks removed", "Stale file handles are retried"),
        "errno(3) ESTALE",
        "the file was replaced or its export moved on the server: remount or open it again, then restart",
    ),
    Pattern(
        "storage.read_only",
        LineRole.ROOT,
        FailureClass.STORAGE_FAULT,
        ("ead-only file system", "Errno 30]"),
        START + r"(?:\[Errno 30\]|[Rr]ead-only file system" + END + r")(?: Read-only file system)?" + _PATH,
        (
            "OSError: [Errno 30] Read-only file system: '/data/x'",
            "mkdir: cannot create directory 'x': Read-only file system",
        ),
        ("mounting a Read-only file system for the base image", "[Errno 300]"),
        "errno(3) EROFS",
        "see mount and dmesg: a disk that failed is remounted read-only; write elsewhere and leave this box",
    ),
    Pattern(
        "storage.io",
        LineRole.ROOT,
        FailureClass.STORAGE_FAULT,
        ("Errno 5]", "nput/output error", "Errno 121]", "emote I/O error"),
        # Of a card of InfiniBand the same words are none of a disk.
        r"^(?!.*(?:\buc[pt]_\w|\bibv_\w|\bUCX\b)).*?"
        + START
        + r"(?:\[Errno (?:5|121)\]|(?:[Ii]nput/output|[Rr]emote I/O) error"
        + END
        + r")(?: (?:Input/output|Remote I/O) error)?"
        + _PATH,
        ("OSError: [Errno 5] Input/output error: '/data/x'", "cp: error reading 'a': Input/output error"),
        (
            "0 Input/output errors",
            "[Errno 51] x",
            "pml_ucx.c:419  Error: ucp_ep_create(proc=1) failed: Input/output error",
        ),
        "errno(3) EIO, EREMOTEIO",
        "the disk or its server failed to read or write: see dmesg; move the data to another disk",
    ),
    Pattern(
        "storage.disconnected",
        LineRole.ROOT,
        FailureClass.STORAGE_FAULT,
        (
            *("ransport endpoint is not connected", "Errno 107]", "Errno 108]", "transport endpoint shutdown"),
            "Errno 70]",
        ),
        START + r"(?:\[Errno (?:70|10[78])\]|[Tt]ransport endpoint is not connected"
        r"|Cannot send after transport endpoint shutdown"
        + END
        + r")(?: (?:Transport endpoint is not connected|Communication error on send))?"
        + _PATH,
        (
            "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/bucket'",
            "ls: /mnt/bucket: Transport endpoint is not connected",
            "OSError: [Errno 70] Communication error on send: '/beegfs/run/last.pt.tmp'",
        ),
        ("is the Transport endpoint is not connected error known",),
        "errno(3) ENOTCONN, ESHUTDOWN, ECOMM: the server of a mount (FUSE, Lustre, BeeGFS) does not answer",
        "the server or program behind the mount does not answer: see that it is mounted and writable, then restart",
    ),
    Pattern(
        CUT_FILE,
        LineRole.ROOT,
        FailureClass.STORAGE_FAULT,
        (
            "failed finding central directory",
            "PytorchStreamReader",
            "Error while deserializing header",
            "Ran out of input",
            "unable to mmap",
            "BadZipFile",
            "truncated file",
            "HeaderTooSmall",
            "pickle data was truncated",
            *("Bad CRC-32", "end-of-stream marker", "unexpected end of file", "Unexpected EOF in archive"),
            *("magic bytes not found", "file is truncated", "Unexpected end of ZIP", "incorrect data check"),
        ),
        START + r"(?:PytorchStreamReader failed|Error while deserializing header|Ran out of input"
        r"|pickle data was truncated|File is not a zip file|Bad CRC-32 for file"
        r"|Compressed file ended before the end-of-stream marker"
        r"|(?:stdin: )?unexpected end of file$|Unexpected EOF in archive|image file is truncated"
        r"|Parquet magic bytes not found|Error -3 while decompressing data)|: failed finding central directory"
        r"|\btruncated file \(eof",
        (
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
            "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
            "EOFError: Ran out of input",
            "zipfile.BadZipFile: File is not a zip file",
            "OSError: Unable to open file (truncated file (eof = 96, sblock->base_addr = 0, stored_eof = 2048))",
        ),
        ("checking for a truncated file", "the generator: it Ran out of input"),
        "torch inline_container.cc; safetensors; pickle; zipfile; HDF5",
        DAMAGED,
        ("U6",),
    ),
    Pattern(
        "file.missing",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        ("No such file or directory", "FileNotFoundError", "does not exist"),
        (
            r"^(?:\w+\.)*FileNotFoundError: |: No such file or directory\s*$"
            r"|^(?:\w+\.)*NotFoundError: .*No such file or directory"
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.idx'",
            "cat: /data/x: No such file or directory",
            "tensorflow.python.framework.errors_impl.NotFoundError: /data/x; No such file or directory",
        ),
        (
            "ignoring: No such file or directory (fine)",
            "except FileNotFoundError: pass",
            "WARNING the cache does not exist yet",
        ),
        "errno(3) ENOENT",
        "correct the path, or bring the file there; declared under `inputs` it is checked before the start",
        passing=True,
    ),
    Pattern(
        "file.permission",
        LineRole.ROOT,
        FailureClass.ENVIRONMENT,
        ("Permission denied", "PermissionError", "Operation not permitted"),
        r"^(?:\w+\.)*PermissionError: |: (?:Permission denied|Operation not permitted)\s*$",
        ("PermissionError: [Errno 13] Permission denied: '/data/x'", "bash: ./train.sh: Permission denied"),
        ("Permission denied entries: 0", "except PermissionError: retry"),
        "errno(3) EACCES, EPERM",
        "see the permissions of what it names",
        passing=True,
    ),
)
