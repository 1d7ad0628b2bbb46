/* Tries to get namespaces, mounts and roots of its own. Outside it runs where all of them are scratch. */
static const struct { const char *name; long flag; } KINDS[] = {
    {"mount", CLONE_NEWNS}, {"cgroup", CLONE_NEWCGROUP}, {"uts", CLONE_NEWUTS}, {"ipc", CLONE_NEWIPC},
    {"user", CLONE_NEWUSER}, {"pid", CLONE_NEWPID}, {"net", CLONE_NEWNET}, {"time", 0x80},
};

/* The exit code of a child that does something: 0 if it succeeded. */
static int in_child(int (*action)(long), long word)
{
    int status;
    pid_t pid = fork();
    if (pid == 0)
        _exit(action(word) == 0 ? 0 : errno);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

static int do_unshare(long flag)
{
    return unshare(flag);
}

static int do_clone(long flags)
{
    long pid = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        _exit(0);
    return pid < 0 ? -1 : 0;
}

static int do_clone3(long flags)
{
    uint64_t words[8] = {[0] = flags, [4] = SIGCHLD};
    long pid = syscall(SYS_clone3, words, sizeof words);
    if (pid == 0)
        _exit(0);
    return pid < 0 ? -1 : 0;
}

static int write_to(const char *path, const char *text)
{
    int file = open(path, O_WRONLY);
    ssize_t wrote = file < 0 ? -1 : write(file, text, strlen(text));
    return wrote < 0 ? -1 : 0;
}

static int become_root(long user)
{
    char map[64];
    snprintf(map, sizeof map, "0 %ld 1\n", user);
    int made = unshare(CLONE_NEWUSER);
    return write_to("/proc/self/uid_map", map) == 0 && made == 0 && getuid() == 0 ? 0 : -1;
}

static int do_chroot(long unused)
{
    (void)unused;
    return chroot(".");
}

static void refused(const char *way, const char *kind, int code)
{
    char name[64];
    snprintf(name, sizeof name, "%s-%s", way, kind);
    report(name, code == 0, strerror(code));
}

static void namespaces(void)
{
    for (unsigned at = 0; at < sizeof KINDS / sizeof *KINDS; at++) {
        long flag = KINDS[at].flag;
        refused("unshare", KINDS[at].name, in_child(do_unshare, flag));
        if (flag != 0x80) /* clone has no bit for it */
            refused("clone", KINDS[at].name, in_child(do_clone, flag));
        int code = in_child(do_clone3, flag);
        refused("clone3", KINDS[at].name, code == ENOSYS ? code : 0);
    }
    refused("clone3", "plain", in_child(do_clone3, 0) == ENOSYS ? ENOSYS : 0);
    refused("map", "root", in_child(become_root, getuid()));
    reaches("setns", syscall(SYS_setns, open("/proc/self/ns/uts", O_RDONLY), 0));
    reaches("sethostname", sethostname("cofferdam-row", 13));
    reaches("setdomainname", setdomainname("cofferdam-row", 13));
}

static char *mount_table(void)
{
    char *text = calloc(1, 1 << 20);
    int file = open("/proc/self/mountinfo", O_RDONLY);
    for (size_t got = 0; ;) {
        ssize_t more = read(file, text + got, (1 << 20) - 1 - got);
        if (more <= 0)
            break;
        got += more;
    }
    close(file);
    return text;
}

#define CALL(name, ...) (errno = 0, last = syscall(SYS_##name, __VA_ARGS__), reaches(#name, last))

static void mounts(void)
{
    long last, context, made;
    uint64_t read_only[4] = {1, 0, 0, 0};
    mkdir("m1", 0755);
    mkdir("m2", 0755);
    CALL(mount, "none", "m1", "tmpfs", 0L, "size=4k");
    CALL(mount_setattr, AT_FDCWD, "m1", 0, read_only, sizeof read_only);
    CALL(open_tree, AT_FDCWD, "m1", 1); /* OPEN_TREE_CLONE */
    CALL(fspick, AT_FDCWD, "m1", 0);
    CALL(umount2, "m1", MNT_DETACH);
    CALL(fsopen, "tmpfs", 0);
    context = last;
    CALL(fsconfig, context, 6, NULL, NULL, 0); /* FSCONFIG_CMD_CREATE */
    CALL(fsmount, context, 0, 0);
    made = last;
    CALL(move_mount, made, "", AT_FDCWD, "m2", 4); /* MOVE_MOUNT_F_EMPTY_PATH */
    CALL(pivot_root, ".", ".");
    refused("chroot", "here", in_child(do_chroot, 0));
}

int main(void)
{
    char *before = mount_table();
    namespaces();
    mounts();
    report("mount-table-changed", strcmp(before, mount_table()) != 0, "");
    return done();
}
