"""Ends badly on purpose, after saying what it could: output, files and the exit status survive."""

import atexit
import logging
import sys
import traceback
import warnings

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
atexit.register(print, "at exit")


class Resource:
    def __enter__(self):
        print("opened")
        return self

    def __exit__(self, kind, value, trace):
        print("closed after", kind.__name__)
        return False


def inner(depth):
    if depth == 0:
        raise LookupError("nothing at the bottom")
    inner(depth - 1)


try:
    with Resource():
        inner(2)
except LookupError as error:
    logging.getLogger("app").error("caught %s", error)
    print([frame.name for frame in traceback.extract_tb(error.__traceback__)])
    print(traceback.format_exception_only(error)[-1], end="")

with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always", DeprecationWarning)
    warnings.warn("old", DeprecationWarning)
print([(str(w.message), w.category.__name__) for w in seen])


def deep(n):
    return deep(n + 1)


try:
    deep(0)
except RecursionError as error:
    print(error)

kept = open("kept.txt", "w")
kept.write("never closed, and yet written")
try:
    [1, 2][9]
except IndexError as error:
    raise RuntimeError("the end") from error
