/* Preloaded into one process of a run: KILL ends it just before the n-th call that changes something.
 *
 * Between two such calls nothing differs on the disk or in the kernel, so their kills stand for one at each system call.
 * KILL_WHO is the first supervisor of a run, or a process that this one forks: supervisor, keeper, copier; a later one by the
 * reason that it was started for: successor, retry, restarted; the command line: front; the queue's worker, or the supervisor
 * that it forks: worker, queued. KILL_AT is the number of the call; KILL_COUNT, instead, a file that grows by a byte with
 * each call, so that somebody learns how many there are. KILL_SEEN is a file that is made when the process is there, and
 * that gets a byte when it is killed. With KILL_FROM nothing counts until that file is there.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static long left;
static pid_t owner;
static int armed, once;
static const char *child, *count, *from, *seen;

/* The libc's own `syscall`; ours is below. */
static long raw(long number, ...) {
    static long (*next)(long, ...);
    if (next == NULL) next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    long with[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) with[i] = va_arg(rest, long);
    va_end(rest);
    return next(number, with[0], with[1], with[2], with[3], with[4], with[5]);
}

static int mark_seen(int how, int killed) {
    int file = seen == NULL ? -1 : raw(SYS_openat, AT_FDCWD, seen, O_WRONLY | O_CREAT | how, 0600L);
    if (file >= 0 && killed) raw(SYS_write, file, "x", 1L);
    if (file >= 0) raw(SYS_close, file);
    return file >= 0;
}

static int contains(const char *data, long size, const char *word) {
    return memmem(data, size, word, strlen(word)) != NULL;
}

static const char *keep(const char *word) {
    return word == NULL ? NULL : strdup(word);
}

__attribute__((constructor)) static void begin(void) {
    static char line[1 << 16];
    const char *who = getenv("KILL_WHO"), *at = getenv("KILL_AT");
    if (who == NULL) return;
    int file = raw(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY);
    long size = raw(SYS_read, file, line, sizeof line);
    raw(SYS_close, file);
    const char *reason = strcmp(who, "successor") == 0 ? "adopt" : strcmp(who, "retry") == 0 ? "retry"
        : strcmp(who, "restarted") == 0 ? "restart" : "start";
    long words = strlen(reason) + 1;
    int fits = strcmp(who, "front") == 0 ? contains(line, size, "killed-front") && !contains(line, size, "supervise")
        : strcmp(who, "worker") == 0 || strcmp(who, "queued") == 0 ? contains(line, size, "queue-worker")
        : contains(line, size, "supervise") && size > words && strcmp(line + size - words, reason) == 0;
    if (!fits) return;
    seen = keep(getenv("KILL_SEEN"));
    /* Of the supervisors that a worker forks only the first is there to be killed. */
    once = strcmp(who, "queued") == 0;
    if (!once) mark_seen(0, 0);
    child = strcmp(who, "keeper") == 0 ? "holdfast-keeper" : strcmp(who, "copier") == 0 ? "holdfast-copy"
        : strcmp(who, "queued") == 0 ? "holdfast-superv" : NULL;
    /* Kept: who is forked by the worker has an environment of its own. */
    count = keep(getenv("KILL_COUNT"));
    from = keep(getenv("KILL_FROM"));
    left = at == NULL ? -1 : atol(at);
    armed = child == NULL;
    owner = getpid();
}

static void step(void) {
    if (!armed || getpid() != owner) return;
    if (from != NULL && raw(SYS_faccessat, AT_FDCWD, from, F_OK) != 0) return;
    if (count != NULL) {
        int file = raw(SYS_openat, AT_FDCWD, count, O_WRONLY | O_CREAT | O_APPEND, 0600);
        raw(SYS_write, file, "x", 1);
        raw(SYS_close, file);
    }
    if (left > 0 && --left == 0) {
        mark_seen(O_APPEND, 1);
        raw(SYS_kill, getpid(), SIGKILL);
    }
}

int prctl(int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d) {
    if (child != NULL && option == 15 && strcmp((const char *)a, child) == 0) {
        armed = !once || mark_seen(O_EXCL, 0);
        owner = getpid();
    }
    return raw(SYS_prctl, option, a, b, c, d);
}

#define NEXT(name) __typeof__(&name) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define STEP(type, name, declared, given) type name declared { NEXT(name); step(); return next given; }
#define OPEN(name) int name(const char *path, int flags, ...) { NEXT(name); va_list rest; va_start(rest, flags); \
    mode_t mode = va_arg(rest, mode_t); va_end(rest); \
    if (flags & (O_CREAT | O_WRONLY | O_RDWR | O_TRUNC)) step(); return next(path, flags, mode); }
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { NEXT(name); va_list rest; \
    va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
    if (flags & (O_CREAT | O_WRONLY | O_RDWR | O_TRUNC)) step(); return next(at, path, flags, mode); }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
STEP(int, rename, (const char *a, const char *b), (a, b))
STEP(int, renameat, (int a, const char *b, int c, const char *d), (a, b, c, d))
STEP(int, unlink, (const char *a), (a))
STEP(int, unlinkat, (int a, const char *b, int c), (a, b, c))
STEP(int, rmdir, (const char *a), (a))
STEP(int, mkdir, (const char *a, mode_t b), (a, b))
STEP(int, mkdirat, (int a, const char *b, mode_t c), (a, b, c))
STEP(int, link, (const char *a, const char *b), (a, b))
STEP(int, symlink, (const char *a, const char *b), (a, b))
STEP(int, fsync, (int a), (a))
STEP(int, fdatasync, (int a), (a))
STEP(int, ftruncate64, (int a, off64_t b), (a, b))
STEP(int, fchmod, (int a, mode_t b), (a, b))
STEP(ssize_t, write, (int a, const void *b, size_t c), (a, b, c))
STEP(ssize_t, pwrite64, (int a, const void *b, size_t c, off64_t d), (a, b, c, d))
STEP(ssize_t, send, (int a, const void *b, size_t c, int d), (a, b, c, d))
STEP(int, socketpair, (int a, int b, int c, int d[2]), (a, b, c, d))
STEP(int, pipe2, (int a[2], int b), (a, b))
int flock(int, int);
STEP(int, flock, (int a, int b), (a, b))
STEP(int, kill, (pid_t a, int b), (a, b))
STEP(pid_t, fork, (void), ())
STEP(pid_t, setsid, (void), ())
STEP(pid_t, waitpid, (pid_t a, int *b, int c), (a, b, c))

/* Signals through a pidfd have no name in libc. */
long syscall(long number, ...) {
    long with[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) with[i] = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_pidfd_send_signal) step();
    return raw(number, with[0], with[1], with[2], with[3], with[4], with[5]);
}
