/* Opens sockets of kinds that nothing here needs. What it says of each begins with family, type, protocol. */
static const struct { const char *name; int family, type, protocol; } KINDS[] = {
    {"alg", 38, SOCK_SEQPACKET, 0},
    {"vsock", 40, SOCK_STREAM, 0},
    {"packet", 17, SOCK_RAW, 0x300},
    {"packet-dgram", 17, SOCK_DGRAM, 0x300},
    {"netlink-route", 16, SOCK_RAW, 0},
    {"netlink-uevent", 16, SOCK_DGRAM, 15},
    {"key", 15, SOCK_RAW, 2},
    {"xdp", 44, SOCK_RAW, 0},
    {"bluetooth", 31, SOCK_RAW, 1},
    {"can", 29, SOCK_RAW, 1},
    {"tipc", 30, SOCK_RDM, 0},
    {"rds", 21, SOCK_SEQPACKET, 0},
    {"rxrpc", 33, SOCK_DGRAM, 2},
    {"raw-icmp", AF_INET, SOCK_RAW, 1},
    {"raw-ip", AF_INET, SOCK_RAW, 255},
    {"raw-icmp6", AF_INET6, SOCK_RAW, 58},
    {"raw-unix", AF_UNIX, SOCK_RAW, 0},
    {"ping", AF_INET, SOCK_DGRAM, 1},
    {"mptcp", AF_INET, SOCK_STREAM, 262},
    {"sctp", AF_INET, SOCK_STREAM, 132},
};

static void attempt(const char *name, long family, int type, int protocol)
{
    char detail[128];
    errno = 0;
    long socket = syscall(SYS_socket, family, type, protocol);
    int refused = socket < 0 && (errno == EPERM || errno == EAFNOSUPPORT || errno == EPROTONOSUPPORT);
    snprintf(detail, sizeof detail, "%d %d %d %s", (int)family, type, protocol, strerror(errno));
    report(name, !refused, detail);
    if (socket >= 0)
        close(socket);
}

/* What has to work: else nothing that was refused proves anything. */
static void needed(int family, int type)
{
    int pair[2];
    if (family == AF_UNIX ? socketpair(family, type, 0, pair) < 0 : socket(family, type, 0) < 0) {
        perror("a socket that programs need");
        exit(3);
    }
}

int main(void)
{
    int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
    for (int at = 0; at < 3; at++)
        needed(AF_UNIX, types[at]);
    for (int at = 0; at < 2; at++)
        needed(AF_INET, types[at]), needed(AF_INET6, types[at]);
    for (unsigned at = 0; at < sizeof KINDS / sizeof *KINDS; at++)
        attempt(KINDS[at].name, KINDS[at].family, KINDS[at].type, KINDS[at].protocol);
    /* The kernel reads an int. */
    attempt("netlink-with-high-bits", 16 | 1L << 32, SOCK_RAW, 0);
    attempt("netlink-with-flags", 16, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return done();
}
