# The words that checks are written in.
. /.vm/programs
COFFERDAM=/.vm/cofferdam
OUTCOME=/tmp/outcome.$$

# Runs a program in a sandbox and keeps the Outcome, whatever the exit code.
outcome() { "$COFFERDAM" run --profile internal --json "$@" > "$OUTCOME" || true; }
# A value of the Outcome, as a Python expression over `o`.
value() { python3 -c 'import json, sys; o = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$OUTCOME" "$1"; }
# Fails unless an expression has a value.
is() {
    local found
    found=$(value "$1")
    [ "$found" = "$2" ] || { echo "$1 is $found and should be $2"; cat "$OUTCOME"; exit 1; }
}
# Fails unless an expression holds.
holds() { is "bool($1)" True; }
# The cgroups of sandboxes.
sandboxes() { find /sys/fs/cgroup -type d -name 'cofferdam-r_*'; }
# Waits for one that has a process in it, and gives it.
one_with_processes() {
    local group
    for _ in $(seq 100); do
        for group in $(sandboxes); do
            [ -z "$(cat "$group/cgroup.procs" 2>/dev/null)" ] || { echo "$group"; return; }
        done
        sleep 0.1
    done
    echo "no sandbox was opened" >&2
    return 1
}
# Fails if there is one, now or soon.
nothing_left() {
    for _ in $(seq 50); do
        [ -z "$(sandboxes)" ] && return
        sleep 0.1
    done
    echo "left: $(sandboxes)"
    exit 1
}
# Runs tests of one of our suites; what they skip, this check skips.
suite() {
    local program=SUITE_$1
    shift
    "${!program}" "$@" 2>&1 | tee /tmp/suite.$$
    if grep -q '^test result: ok. 0 passed' /tmp/suite.$$; then echo "no test has that name"; exit 1; fi
    if grep -q '^SKIPPED' /tmp/suite.$$; then grep '^SKIPPED' /tmp/suite.$$ | tail -n 1; exit 77; fi
}
# A cgroup that is the ordinary user's, as an administrator would make it by hand.
delegate() {
    GROUP=/sys/fs/cgroup/$1
    mkdir "$GROUP"
    chown 1001:1001 "$GROUP" "$GROUP"/cgroup.{procs,threads,subtree_control}
}
# Runs a command as the ordinary user, in a cgroup if one is named; nobody else is moved there.
as_user() { # [-g GROUP] COMMAND…
    local group=
    if [ "$1" = -g ]; then
        group=$2
        shift 2
    fi
    (
        [ -z "$group" ] || echo "$BASHPID" > "$group/cgroup.procs"
        cd /home/tester
        exec setpriv --reuid 1001 --regid 1001 --clear-groups env -i PATH="$PATH" LANG="$LANG" HOME=/home/tester \
            USER=tester LOGNAME=tester COFFERDAM_VM="$STAGE" ${BUS:+XDG_RUNTIME_DIR=/run/user/1001} "$@"
    )
}
# Under systemd the user has a message bus; a check takes it away with `BUS=`.
BUS=
[ "$STAGE" != service ] || BUS=yes
# The same as `outcome`, as the ordinary user.
outcome_as_user() {
    local group=()
    if [ "$1" = -g ]; then
        group=(-g "$2")
        shift 2
    fi
    as_user "${group[@]}" "$COFFERDAM" run --profile internal --json "$@" > "$OUTCOME" || true
}
