"""Makes a tree of files, walks it, finds duplicates, copies, moves and removes."""

import fnmatch
import glob
import hashlib
import os
import shutil
import tempfile
from pathlib import Path, PurePosixPath

root = Path("tree")
for name, content in {
    "a.txt": "one",
    "sub/b.txt": "one",
    "sub/deep/c.py": "print(1)\n" * 3,
    "sub/deep/.hidden": "",
    "other/d.md": "# title\n",
    "other/ümläut ☃.txt": "two",
}.items():
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")

for folder, folders, files in os.walk(root):
    folders.sort()
    print(folder, sorted(files))
print(sorted(str(path.relative_to(root)) for path in root.rglob("*.txt")))
print(sorted(glob.glob("tree/**/*.py", recursive=True)), fnmatch.filter(["x.py", "y.txt"], "*.py"))

by_hash = {}
for path in sorted(root.rglob("*")):
    if path.is_file():
        by_hash.setdefault(hashlib.sha256(path.read_bytes()).hexdigest()[:8], []).append(path.name)
print({key: names for key, names in by_hash.items() if len(names) > 1})

shutil.copytree(root, "copy", ignore=shutil.ignore_patterns(".*"))
shutil.move("copy/a.txt", "copy/moved.txt")
os.replace("copy/other/d.md", "copy/e.md")
print(sorted(os.listdir("copy")), sum(path.stat().st_size for path in Path("copy").rglob("*") if path.is_file()))
shutil.rmtree("copy/sub")
print(Path("copy/sub").exists(), Path.cwd().is_absolute(), PurePosixPath("/a/b.tar.gz").suffixes, Path("x/../y").resolve().name)

with tempfile.TemporaryDirectory() as folder:
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".log") as file:
        file.write("temporary")
        file.flush()
        print(os.path.dirname(file.name) == folder, os.path.getsize(file.name))
print(os.path.exists(folder))

with open("tree/a.txt", "r+") as file:
    file.seek(0, os.SEEK_END)
    file.write(" more")
    file.seek(0)
    print(file.read(), file.tell())
    file.truncate(3)
print(Path("tree/a.txt").read_text(), os.path.splitext("a/b.c.d"), os.path.commonpath(["/a/b", "/a/c"]))
for attempt in (lambda: open("nowhere/x", "w"), lambda: os.rmdir("tree"), lambda: Path("tree").read_text()):
    try:
        attempt()
    except OSError as error:
        print(type(error).__name__, error.strerror)
