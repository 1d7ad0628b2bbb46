/* Makes every call that it is told of in a process of its own. Its words are NUMBER:ERRNO:NAME, where
   ERRNO is what must come of the call, or 0 if anything may. */
static long *answer;

enum { NOTHING = 100000, SIGNALLED = 200000 };

/* All ones fail for every call that takes something, but for these. */
static void choose(long number, long *words)
{
    for (int at = 0; at < 6; at++)
        words[at] = -1;
    if (number == SYS_fanotify_init)
        words[0] = 0x200, words[1] = 0; /* FAN_REPORT_FID, which needs no privilege */
    if (number == SYS_syslog)
        words[0] = 10; /* the size of the log */
    if (number == SYS_init_module)
        words[1] = 0; /* a module of no bytes */
}

static void ask(long number)
{
    long words[6];
    choose(number, words);
    setsid(); /* what hangs up a terminal finds none */
    struct itimerval soon = {.it_value.tv_usec = 100000};
    setitimer(ITIMER_REAL, &soon, NULL);
    long got = syscall(number, words[0], words[1], words[2], words[3], words[4], words[5]);
    *answer = got < 0 ? errno : 0;
    _exit(0);
}

#ifdef __x86_64__
static void ask_as_i386(long number)
{
    long got = number;
    __asm__ volatile("int $0x80" : "+a"(got) : : "memory", "r8", "r9", "r10", "r11");
    *answer = got;
    _exit(0);
}
#endif

static long in_child(void (*action)(long), long number)
{
    int status;
    *answer = NOTHING;
    pid_t pid = fork();
    if (pid == 0)
        action(number);
    if (waitpid(pid, &status, 0) != pid)
        exit(3);
    return WIFSIGNALED(status) ? SIGNALLED + WTERMSIG(status) : *answer;
}

int main(int count, char **words)
{
    answer = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int at = 1; at < count; at++) {
        long number, expected;
        char name[64], detail[64];
        if (sscanf(words[at], "%ld:%ld:%63s", &number, &expected, name) != 3)
            return 3;
        long got = in_child(ask, number);
        snprintf(detail, sizeof detail, "answers %ld", got);
        if (expected)
            report(name, got != expected, detail);
    }
#ifdef __x86_64__
    /* Other interfaces than this architecture's own: those who use them are killed. */
    report("x32", in_child(ask, 0x40000000 | SYS_getpid) != SIGNALLED + SIGSYS, "");
    report("i386", in_child(ask_as_i386, 20) != SIGNALLED + SIGSYS, "");
#endif
    return done();
}
