#!/bin/bash
# Runs one check as root and says what came of it: 0 passed, 77 can't be checked here, else failed.
name=${1##*/}
export STAGE=${name%%.*} NAME=${name#*.}
began=$(cut -d' ' -f1 /proc/uptime)
timeout -k 5 180 bash -euo pipefail -c '. /.vm/words; . "$0"' "$1" > /.vm/log 2>&1 < /dev/null
code=$?
if [ "$code" = 0 ]; then
    grep '^measured: ' /.vm/log | sed "s/^/@log $NAME /"
    echo "@check pass $NAME $(cut -d' ' -f1 /proc/uptime | awk -v began="$began" '{ print $1 - began }')"
elif [ "$code" = 77 ]; then
    echo "@check skip $NAME $(tail -n 1 /.vm/log)"
else
    echo "@check fail $NAME exit code $code"
    tail -n 40 /.vm/log | sed "s/^/@log $NAME /"
fi
