/* Lies in the image with a setuid bit or with file capabilities: has it got more than who starts it? */
static unsigned long long effective(void)
{
    char line[256];
    unsigned long long set = 0;
    FILE *status = fopen("/proc/self/status", "r");
    if (status == NULL)
        exit(3);
    while (fgets(line, sizeof line, status) != NULL)
        sscanf(line, "CapEff: %llx", &set);
    return set;
}

int main(int count, char **words)
{
    char detail[64];
    if (count != 2)
        return 3;
    unsigned long long set = effective();
    snprintf(detail, sizeof detail, "uid %d, euid %d, capabilities %llx", getuid(), geteuid(), set);
    report(words[1], geteuid() != getuid() || geteuid() == 0 || set != 0, detail);
    return done();
}
