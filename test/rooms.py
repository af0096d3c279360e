#!/usr/bin/env python3
"""The rooms of src/ and include/trireme/, from the ground up as CMakeLists.txt lists them (trireme_rooms): each uses those before
it alone, so that there are no circles; no room below the tasks uses more than ten others; only comm names MPI_COMM_WORLD; no
private header has a single reader, which should hold its text itself; the folders of test/unit and test/parallel have rooms'
names, and test/ has at most 400 files. Prints each violation, and exits 1 if there is one."""
import collections
import pathlib
import re
import sys

MOST_USED = 10
TOP = ("tools", "app", "tasks")  # the band that puts the others together
MOST_TEST_FILES = 400
HEADERS = {".hpp", ".cuh"}


def tests(folder, rooms):
    """Faults of the folder of tests."""
    faults = [f"test/{base}/{path.name}: is no room" for base in ("unit", "parallel") for path in sorted((folder / base).iterdir())
              if path.is_dir() and path.name not in rooms]
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    if len(files) > MOST_TEST_FILES:
        faults.append(f"test: has {len(files)} files, more than {MOST_TEST_FILES}")
    headers = [path for path in files if path.suffix == ".hpp" and "include" not in path.parts]
    texts = [path.read_text(encoding="utf-8") for path in files if path.suffix in {".cpp", ".cu", ".c"} | HEADERS]
    return faults + [f"{path.relative_to(folder.parent)}: has one reader, which can hold its text" for path in headers
                     if sum(bool(re.search(rf'^#include "(?:[^"]*/)?{path.name}"', text, re.M)) for text in texts) < 2]


def main():
    root = pathlib.Path(sys.argv[1])
    rooms = re.search(r"set\(trireme_rooms ([^)]*)\)", (root / "CMakeLists.txt").read_text())[1].split()
    faults = []
    folders = {path.name for base in ("src", "include/trireme") for path in (root / base).iterdir() if any(file.is_file() for file in path.rglob("*"))}
    faults += [f"{room}: is no room of CMakeLists.txt" for room in sorted(folders - set(rooms))]
    faults += tests(root / "test", rooms)
    files = [path for base in ("src", "include/trireme") for room in rooms for path in sorted((root / base / room).rglob("*"))
             if path.suffix in {".cpp", ".cu"} | HEADERS]
    used = collections.defaultdict(set)
    readers = collections.defaultdict(set)
    for path in files:
        place = path.relative_to(root)
        room = place.parts[2 if place.parts[0] == "include" else 1]
        text = path.read_text(encoding="utf-8")
        named = set(re.findall(r'^#include "trireme/(\w+)/', text, re.M)) | set(re.findall(r"^ *namespace trireme::(\w+)", text, re.M))
        for other in named - {room}:
            used[room].add(other)
            if other not in rooms or rooms.index(other) > rooms.index(room):
                faults.append(f"{place}: uses {other}, which is not below {room}")
        if room != "comm" and re.search(r"(?<!O)MPI_COMM_WORLD", text):
            faults.append(f"{place}: names MPI_COMM_WORLD; only src/comm may")
    for path in [*files, *(root / "test").rglob("*.[ch]pp"), *(root / "test").rglob("*.cu")]:
        for name in re.findall(r'^#include "([^"]+)"', path.read_text(encoding="utf-8"), re.M):
            readers[pathlib.Path(name).name].add(path)
    for path in files:
        if path.suffix in HEADERS and path.is_relative_to(root / "src") and len(readers[path.name]) < 2:
            faults.append(f"{path.relative_to(root)}: has one reader, which can hold its text")
    for room in rooms:
        if room not in TOP and len(used[room]) > MOST_USED:
            faults.append(f"{room}: uses {len(used[room])} rooms: {', '.join(sorted(used[room]))}")
    print("\n".join(faults) or f"{len(rooms)} rooms, {len(files)} files: each uses what is below it")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
