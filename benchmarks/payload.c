/*
 * The jobs of the benchmarks: so small that starting them costs next to nothing beside what is measured.
 *
 *   payload stamp FILE MS       append "begin_ns end_ns" (CLOCK_MONOTONIC), MS milliseconds apart; one line, one write
 *   payload rest                sleep until a signal ends it
 *   payload tree FIFO COUNT     COUNT processes besides itself that are hard to end. Each opens FIFO for writing, writes
 *                               one byte when it is in place, and keeps it open: end of file on the other side is the
 *                               kernel's word that none is left, whatever session, parent or namespace it is in.
 *
 * Every process keeps the argument vector, so that survivors are found in /proc by the FIFO's name.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int stamp(const char *path, long milliseconds)
{
    long long begin = now_ns();
    struct timespec pause_for = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    char line[64];
    if (fd < 0)
        return 1;
    if (milliseconds)
        nanosleep(&pause_for, NULL);
    int length = snprintf(line, sizeof line, "%lld %lld\n", begin, now_ns());
    return write(fd, line, length) == length ? 0 : 1;
}

static void stay(int fd)
{
    if (write(fd, ".", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

/* One member: what it does to be missed by whoever ends the tree depends on its number. */
static void member(int fd, long number)
{
    int kind = number % 10;
    if (kind == 2 || kind == 3 || kind == 8 || kind == 9)
        setsid();
    if (kind == 4 || kind == 5 || kind == 8 || kind == 9) {
        if (fork())
            _exit(0);
        if (kind >= 8)
            setsid();
    }
    if (kind == 6 || kind == 8) {
        signal(SIGTERM, SIG_IGN);
        signal(SIGINT, SIG_IGN);
        signal(SIGHUP, SIG_IGN);
    }
    if (kind == 7) {
        if (write(fd, ".", 1) != 1)
            _exit(1);
        raise(SIGSTOP);
        for (;;)
            pause();
    }
    stay(fd);
}

static int tree(const char *path, long count)
{
    int fd = open(path, O_WRONLY);
    if (fd < 0)
        return 1;
    signal(SIGCHLD, SIG_IGN);
    for (long number = 0; number < count; number++) {
        pid_t pid = fork();
        if (pid < 0)
            return 1;
        if (pid == 0)
            member(fd, number);
    }
    stay(fd);
    return 0;
}

int main(int count, char **words)
{
    if (count == 4 && !strcmp(words[1], "stamp"))
        return stamp(words[2], atol(words[3]));
    if (count == 4 && !strcmp(words[1], "tree"))
        return tree(words[2], atol(words[3]));
    if (count >= 2 && !strcmp(words[1], "rest"))
        for (;;)
            pause();
    return 64;
}
