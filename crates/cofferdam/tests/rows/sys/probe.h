/* The protocol of a probe (see testkit's rows.rs), put before every probe in C. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static int got_through;

static void report(const char *name, int breach, const char *detail)
{
    got_through |= breach;
    printf("@ %s %s %s\n", name, breach ? "breach" : "denied", detail);
    fflush(stdout);
}

static int done(void)
{
    return got_through ? 0 : 10;
}

/* For calls that are refused as such: any other answer shows that they reached the kernel. */
static void reaches(const char *name, long answer)
{
    int refused = answer < 0 && (errno == EPERM || errno == ENOSYS);
    report(name, !refused, answer < 0 ? strerror(errno) : "done");
}
