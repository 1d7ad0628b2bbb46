/* Looks into other processes: its words are NAME=PID, where the PID of 0 comes on standard input. Then it
   looks into a child of its own. */

/* Somewhere in that process, or in this one if that can't be found out. */
static unsigned long some_address(long pid)
{
    static char here[16];
    char path[64];
    unsigned long start = 0;
    snprintf(path, sizeof path, "/proc/%ld/maps", pid);
    FILE *maps = fopen(path, "r");
    if (maps == NULL || fscanf(maps, "%lx-", &start) != 1)
        start = (unsigned long)here;
    if (maps != NULL)
        fclose(maps);
    return start;
}

static void say(const char *name, const char *what, int breach)
{
    char full[128];
    snprintf(full, sizeof full, "%s-%s", name, what);
    report(full, breach, breach ? "" : strerror(errno));
}

static int reads_file(long pid, const char *file, unsigned long at)
{
    char path[64], byte;
    snprintf(path, sizeof path, "/proc/%ld/%s", pid, file);
    int open_file = open(path, O_RDONLY);
    if (open_file < 0)
        return 0;
    int got = pread(open_file, &byte, 1, at) == 1;
    close(open_file);
    return got;
}

static void look_into(const char *name, long pid)
{
    char byte;
    unsigned long address = some_address(pid);
    struct iovec to = {&byte, 1}, from = {(void *)address, 1};
    say(name, "memory", process_vm_readv(pid, &to, 1, &from, 1, 0) == 1);
    errno = 0;
    long pidfd = syscall(SYS_pidfd_open, pid, 0);
    /* One's own child is one's own to wait for, and has its files in /proc, as on every host. */
    if (strcmp(name, "child") != 0) {
        say(name, "pidfd", pidfd >= 0);
        say(name, "mem", reads_file(pid, "mem", address));
        say(name, "environ", reads_file(pid, "environ", 0));
    }
    say(name, "getfd", syscall(SYS_pidfd_getfd, pidfd, 0, 0) >= 0);
    say(name, "kcmp", syscall(SYS_kcmp, getpid(), pid, 1, 0, 0) >= 0);
    int seized = ptrace(PTRACE_SEIZE, pid, NULL, NULL) == 0;
    say(name, "seize", seized);
    if (seized && ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) == 0 && waitpid(pid, NULL, __WALL) == pid)
        ptrace(PTRACE_DETACH, pid, NULL, NULL);
}

int main(int count, char **words)
{
    for (int at = 1; at < count; at++) {
        char name[32];
        long pid;
        if (sscanf(words[at], "%31[^=]=%ld", name, &pid) != 2)
            return 3;
        if (pid == 0 && scanf("%ld", &pid) != 1)
            return 3;
        look_into(name, pid);
    }
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    look_into("child", child);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    pid_t traced = fork();
    if (traced == 0)
        _exit(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0 ? 0 : 1);
    int status;
    waitpid(traced, &status, 0);
    say("child", "asks-to-be-traced", WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return done();
}
