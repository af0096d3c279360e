#!/usr/bin/env python3
"""What the documents name exists, and their commands run.

documents.py SOURCE: every relative link and anchor of the Markdown files, and every source file that they or the pictures of
doc/ name, is there. Files that a worked example would add (test/extending/*.patch) count as there.

documents.py --run BUILD [--slow] [PAGE...]: runs the commands of README.md and doc/ as they stand, page by page, in a folder that
stands after the README's first steps: build/trireme, first.in, a small data/wikitext2.h5 (words of the harbour corpus), a
finished runs/first (README.md: none yet). What cannot run here is named in NOT_RUN with the reason, what takes long in SLOW;
keys of such commands must still exist. `srun` starts two ranks with mpirun. Every key of the deck is mentioned on some page.

Prints each fault as path:line, and exits 1 if there is one; 77: skipped."""
import fnmatch
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SOURCE = re.compile(r"[\w*/.-]*[\w*]\.(?:cpp|hpp|cuh?)\b")
PLACE = re.compile(r"(?<![\w/.-])(?:src|include|test|vis|cmake|jobscripts|packaging)/[\w*/.-]*\w\.\w+\b")


def folders(root):
    """Those of the repository, without build trees and what git hides."""
    return [path for path in root.iterdir() if path.is_dir() and not re.match(r"\.|build|(runs|data|install|shared)$", path.name)]


def blank(text, pattern):
    """The text with each match as blanks, so that lines stay where they are."""
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.M | re.S)


def prose(text):
    """The text without code, in which brackets are no links and '#' begins no heading."""
    return blank(blank(text, r"^```.*?^```"), r"`[^`\n]+`")


def anchors(text):
    """Names that GitHub gives the headings."""
    found = set()
    for heading in re.findall(r"^#+ +(.*?) *$", blank(text, r"^```.*?^```"), re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        repeated = (f"{name}-{i}" for i in range(1, 1000))
        found.add(name if name not in found else next(each for each in repeated if each not in found))
    return found


def broken_links(path, text):
    """(index, fault) of each link to a file or heading that is not there."""
    for link in LINK.finditer(prose(text)):
        target, _, anchor = link[1].partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = path.parent / target if target else path
        if not file.exists():
            yield link.start(), f"links to {link[1]}: there is no such file"
        elif anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
            yield link.start(), f"links to {link[1]}: there is no such heading"


def missing_files(text, files):
    """(index, fault) of each source file or place in the repository that is named and is not there."""
    for pattern, exact in ((SOURCE, False), (PLACE, True)):
        for name in pattern.finditer(text):
            if re.fullmatch(r"[A-Z]+", pathlib.PurePosixPath(name[0]).stem):
                continue  # stands for a name
            patterns = [name[0]] if exact else [name[0], "*/" + name[0]]
            if not any(fnmatch.filter(files, each) for each in patterns):
                yield name.start(), f"names {name[0]}: there is no such file"


PROGRAMS = ("trireme", "build/trireme", "mpirun", "srun", "python3", "bash", "echo")
# The first pattern that a command matches says why it is not run here.
NOT_RUN = [
    (r"\b[A-Z][A-Z_]{2,}\b(?!=)", "has a word that stands for the user's own"),
    (r"srun --mpi|\bsbatch|\bmodule |jobscripts/slurm|SLURM|test/slurm", "needs a batch system (the tests `slurm`)"),
    (r"build-cuda|build-mpich|\bnsys|\bncu|one_card|run_gpu|pack_gpu|test/benchmark/gpu", "needs a GPU, or another build"),
    (r"jobscripts/(workstation|build|install|fetch)|\bcmake|\bpip\b|\bgit\b|\bnpm\b|venv", "installs, builds or fetches"),
    (r"bash test/|test/benchmark|_benchmark|vis/upload|tensorboard", "is a test, a benchmark or another program's"),
    (r"--watch|generate\.prompt=-", "waits for its user"),
    (r"hf\.path=|deck\.in|tokenize\.(train|valid|test|tokenizer)|translation_text|(mine|wiki\.test)\.t|questions\.jsonl|pieces\.h5|books\.h5",
     "reads the user's own files"),
    (r"runs/mine|ranks_\*", "goes on with what was not run here"),
    (r"section\.key", "is a form, no command"),
    (r"run\.device=cuda|run\.share_device", "needs a GPU"),
]
SLOW = [r"job\.task=scaling", r"jobscripts/scaling\.sh", r"vis/scaling\.py", r"--calibrate", r"here\.in", r"translation", r"input/harbour",
        r"input/mixture", r"input/wikitext2_jsc", r"equal_work"]
SECONDS = 120  # that a command may take


def blocks(text):
    """(info word, line number, text) of each fenced block."""
    for m in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.M | re.S):
        yield m[1], text.count("\n", 0, m.start()) + 2, m[2]


def commands(text):
    """(line number, command) of each command in the page, continuation lines joined, comments cut off."""
    for info, line, block in blocks(text):
        if info not in ("", "sh", "bash"):
            continue
        number = line
        for joined in re.sub(r"\\\n\s*", lambda m: " \0", block).split("\n"):
            command = joined.replace("\0", "")
            command = re.sub(r"(^|\s)#.*$", "", command).strip()
            words = [w for w in command.split() if "=" not in w or "." in w.split("=")[0]]
            if words and words[0] in PROGRAMS and not re.match(r"trireme: ", command):
                yield number, command
            number += 1 + joined.count("\0")


def run(folder, command):
    """Exit code (124: not done in SECONDS) and output of a command in the folder. timeout ends what it started, too."""
    env = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "COLUMNS": "100",
           "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
           "OMPI_MCA_mpi_yield_when_idle": "1"}
    done = subprocess.run(["timeout", "-k", "5", str(SECONDS), "bash", "-c", command], cwd=folder, env=env, stdin=subprocess.DEVNULL,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout


def begin(source, build, folder):
    """Makes the folder in which the README's reader stands after the first steps."""
    for name in ("input", "vis", "jobscripts", "packaging"):
        shutil.copytree(source / name, folder / name)
    (folder / "build").symlink_to(build)
    (folder / "data").mkdir()
    (folder / "bin").mkdir()
    (folder / "bin/trireme").symlink_to(build / "trireme")
    # python3 has the packages of the one that runs this.
    for name, script in (("python3", f'exec {sys.executable} "$@"'),
                         ("srun", 'ranks=2\n[ "$1" != -n ] || { ranks=$2; shift 2; }\nexec mpirun -n $ranks "$@"')):
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / "bin" / name).chmod(0o755)
    deck = next(text for info, _, text in blocks((source / "README.md").read_text(encoding="utf-8")) if info == "ini")
    (folder / "first.in").write_text(deck)
    for command in ("build/trireme -i first.in job.task=tokenize tokenize.kind=harbour tokenize.harbour_tokens=100000",
                    "build/trireme -i first.in"):
        code, output = run(folder, command)
        if code != 0:
            sys.exit(f"{command}: code {code}\n{output}")


def keys_of(build):
    """All keys of the deck, as section.key."""
    text = subprocess.run([build / "trireme", "--help-deck"], capture_output=True, text=True, check=True).stdout
    keys, section = set(), ""
    for line in text.split("\n"):
        if m := re.match(r"\[(\w+)\]$", line):
            section = m[1]
        elif m := re.match(r"  (\w+) =", line):
            keys.add(f"{section}.{m[1]}")
    return keys


def run_commands(arguments):
    if importlib.util.find_spec("matplotlib") is None:
        print("skipped: this Python has no matplotlib, which the pages' pictures need")
        return 77
    slow = "--slow" in arguments
    build, *wanted = [pathlib.Path(a) for a in arguments if a != "--slow"]
    build, source = build.resolve(), pathlib.Path(__file__).resolve().parent.parent
    pages = wanted or [source / "README.md", *sorted((source / "doc").glob("*.md")), *sorted((source / "doc/reference").glob("*.md"))]
    keys, faults, ran = keys_of(build), 0, 0
    with tempfile.TemporaryDirectory() as made:
        first = pathlib.Path(made) / "first"
        first.mkdir()
        begin(source, build, first)
        for page in pages:
            folder = pathlib.Path(made) / "page"
            shutil.copytree(first, folder, symlinks=True)
            if page.name == "README.md" and page.parent == source:
                shutil.rmtree(folder / "runs")
            for line, command in commands(page.read_text(encoding="utf-8")):
                at = f"{page.resolve().relative_to(source)}:{line}"
                unknown = [k for k in re.findall(r"(?<![\w./-])([a-z]+\.[a-z_0-9]+)=", command) if k not in keys and k != "section.key"]
                if unknown:
                    faults += 1
                    print(f"{at}: {command}\n  FAULT: no key {', '.join(unknown)}")
                    continue
                reason = next((why for pattern, why in NOT_RUN if re.search(pattern, command)), None)
                if reason is None and not slow and any(re.search(p, command) for p in SLOW):
                    reason = "takes long (nightly)"
                if reason:
                    print(f"{at}: not run, {reason}: {command}")
                    continue
                start = time.monotonic()
                code, output = run(folder, command)
                ran += 1
                print(f"{at}: {time.monotonic() - start:.1f} s: {command}", flush=True)
                if code != 0:
                    faults += 1
                    print(f"  FAULT: code {code}\n" + "\n".join("  | " + text for text in output.strip().split("\n")[-25:]))
            shutil.rmtree(folder)
    told = "\n".join(path.read_text(encoding="utf-8") for path in [source / "README.md", *(source / "doc").rglob("*.md")])
    for key in sorted(key for key in keys if not re.search(rf"(?<![\w.]){re.escape(key)}(?![\w])", told)):
        faults += 1
        print(f"doc: FAULT: no page mentions {key} (doc/reference/rare_keys.md lists those that hardly anybody needs)")
    print(f"{ran} commands ran, {faults} faults")
    return bool(faults)


def check_names(root):
    files = [path.relative_to(root).as_posix() for folder in folders(root) for path in folder.rglob("*") if path.is_file()]
    for patch in (root / "test/extending").glob("*.patch"):
        files += re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(encoding="utf-8"), re.M)
    documents = [*root.glob("*.md"), *(path for folder in folders(root) for path in folder.rglob("*.md"))]
    faults = set()
    for path in sorted([*documents, *root.glob("doc/*.svg")]):
        text = path.read_text(encoding="utf-8")
        found = [*missing_files(text, files), *(broken_links(path, text) if path.suffix == ".md" else [])]
        faults |= {f"{path.relative_to(root)}:{text.count(chr(10), 0, at) + 1}: {fault}" for at, fault in found}
    print("\n".join(sorted(faults)) or f"{len(documents)} documents: what they link to and name is there")
    return bool(faults)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        sys.exit(run_commands(sys.argv[2:]))
    sys.exit(check_names(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
