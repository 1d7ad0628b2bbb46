/* Calls to large parts of the kernel and to what is the host administrator's. Every one has arguments
   with which it can change nothing of the host, and fails in another way than by EPERM or ENOSYS. */
#define CALL(name, ...) (errno = 0, reaches(#name, syscall(SYS_##name, __VA_ARGS__)))

static void kernel_surface(void)
{
    char buffer[256] = {0};
    void *nowhere = (void *)-1;
    CALL(bpf, 0, NULL, 65536);
    CALL(perf_event_open, buffer, 0, -1, -1, -1L);
    CALL(userfaultfd, 1); /* UFFD_USER_MODE_ONLY, which needs no privilege */
    CALL(keyctl, 0, -3, 0);
    CALL(add_key, "user", "cofferdam-row", "x", 1L, -2);
    CALL(request_key, "user", "cofferdam-row-missing", NULL, 0);
    CALL(vmsplice, -1, NULL, 0, 0);
    CALL(memfd_secret, 0);
    CALL(fanotify_init, 0x200, 0);
    CALL(fanotify_mark, -1, -1, -1L, -1, nowhere);
    struct { unsigned bytes; int type; char handle[128]; } handle = {0};
    int mount_id;
    CALL(name_to_handle_at, AT_FDCWD, ".", &handle, &mount_id, 0);
    handle.bytes = 8;
    CALL(open_by_handle_at, -1, &handle, 0);
    CALL(pidfd_getfd, -1, 0, 0);
    CALL(process_madvise, -1, NULL, 0L, 0, 0);
    CALL(process_mrelease, -1, 0);
    CALL(kcmp, getpid(), getpid(), 1, 0, 0);
    CALL(io_setup, 1, nowhere);
#ifdef SYS_modify_ldt
    CALL(modify_ldt, 0, buffer, sizeof buffer);
#endif
}

static void administration(void)
{
    void *nowhere = (void *)-1;
    CALL(kexec_load, 0, 0, NULL, -1L);
    CALL(kexec_file_load, -1, -1, 0, NULL, -1L);
    CALL(init_module, nowhere, 0, "");
    CALL(finit_module, -1, "", 0);
    CALL(delete_module, nowhere, 0);
    CALL(acct, nowhere);
    CALL(swapon, nowhere, 0);
    CALL(swapoff, nowhere);
    CALL(reboot, 0, 0, 0, NULL);
    CALL(settimeofday, nowhere, NULL);
    CALL(clock_settime, 0, nowhere);
    CALL(clock_adjtime, 0, nowhere);
    CALL(adjtimex, nowhere);
    CALL(quotactl, -1, nowhere, 0, NULL);
    CALL(syslog, 10, NULL, 0);
    CALL(syncfs, -1);
#ifdef SYS_iopl
    CALL(iopl, 4);
    CALL(ioperm, -1L, -1L, 1);
#endif
}

int main(void)
{
    kernel_surface();
    administration();
    return done();
}
