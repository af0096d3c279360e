#!/usr/bin/env python3
"""Files that the ranks of a job open from their start to their first step, counted by strace: below 20 of
the job's own on the first rank of a node, below 5 on each further one, whatever the number of ranks. Prints
the table of doc/reference/data.md. Usage: opens.py TRIREME MPIRUN; exit code 77: cannot be judged here."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

from hf_run import LAUNCH

MOST_OF_NODE, MOST_OF_RANK = 20, 5
MOST_OF_TOKEN_FILE = 3  # looked at, described by HDF5, read
GROUPS = ("token file", "deck and run folder", "copy and records of the node", "MPI's own", "system's settings",
          "/proc, /sys, /dev", "program and libraries", "not found among libraries")
OWN = GROUPS[:3]

DECK = """
[job]
output = run
[data]
file = tokens.h5
sequence_length = 16
batch = 8
[model]
dim = 32
heads = 2
layers = 1
ffn = 64
[schedule]
steps = 2
warmup_steps = 1
[checkpoint]
every_steps = 0
[monitor]
every_steps = 1
validate_every_steps = 0
sample_tokens = 0
report = no
"""

CALL = re.compile(r'(?:open|openat|creat)\((?:(?:AT_FDCWD|\d+)(?:<(?P<where>[^>]*)>)?, )?"(?P<path>[^"]*)".* = (?P<fd>-?\d+)')


def group_of(path, found):
    """Group of a path that is absolute, or relative to the folder of the job."""
    name = os.path.basename(path)
    if "trireme_tokens_" in name or path == "/dev/shm" or path.startswith("/dev/shm/trireme."):
        return "copy and records of the node"
    if path == "/" or path.startswith(("/proc", "/sys", "/dev")):
        return "/proc, /sys, /dev"
    library = ".so" in name or path.startswith(("/usr/lib", "/lib")) or name in ("ld.so.cache", "trireme")
    if library:
        return "program and libraries" if found else "not found among libraries"
    if name == "tokens.h5":
        return "token file"
    # Open MPI's and PMIx's settings, session folders, plugins; settings of UCX, under MPICH.
    if re.search(r"openmpi|pmix|ompi\.", path) or name == "ucx.conf":
        return "MPI's own"
    if path.startswith(("/etc", "/usr", "/run", "/root", "/home")):
        return "system's settings"
    return "deck and run folder"


def count(trace, folder):
    """Opens of one rank by group, up to the record of the first step."""
    counts = dict.fromkeys(GROUPS, 0)
    unfinished = {}
    for line in open(trace, encoding="utf-8", errors="replace"):
        process, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            unfinished[process] = call[: -len("<unfinished ...>")]
            continue
        resumed = re.match(r"<\.\.\. \w+ resumed>", call)
        if resumed:
            call = unfinished.pop(process, "") + call[resumed.end():]
        if call.startswith("write(") and '\\"kind\\":\\"step\\"' in call:
            break
        match = CALL.match(call)
        if not match:
            continue
        path = match["path"]
        if not path.startswith("/") and match["where"]:
            path = os.path.join(match["where"], path)
        if path.startswith(folder + "/"):
            path = path[len(folder) + 1:]
        counts[group_of(path, int(match["fd"]) >= 0)] += 1
    return counts


def traced(trireme, mpirun, ranks, staging):
    """Counts of all ranks of a job that trains."""
    shutil.rmtree("run", ignore_errors=True)
    rank = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
    # Writes are shown as far as the kind of a record.
    command = (f"exec strace -f -y -s 40 -e trace=open,openat,creat,write -o trace.{rank} "
               f"{trireme} -i deck.in data.staging={staging}")
    done = subprocess.run(["bash", str(LAUNCH), mpirun, "-n", str(ranks), "bash", "-c", command],
                          capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"FAILED: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    folder = os.path.realpath(".")
    return [count(f"trace.{rank}", folder) for rank in range(ranks)]


def check(counts, staging):
    """Complaints about the opens of the ranks of one node."""
    for rank, groups in enumerate(counts):
        own = sum(groups[group] for group in OWN)
        most = MOST_OF_NODE if rank == 0 else MOST_OF_RANK
        if own >= most:
            yield f"{staging}, {len(counts)} ranks: rank {rank} opens {own} files of its own, {most} or more"
        if rank == 0 and not 1 <= groups["token file"] <= MOST_OF_TOKEN_FILE:
            yield f"{staging}: the token file is opened {groups['token file']} times"
        if rank > 0 and staging != "stream" and groups["token file"] > 0:
            yield f"{staging}: rank {rank} opens the token file"
        if rank > 0 and groups["deck and run folder"] > 0:
            yield f"{staging}: rank {rank} opens the deck or the run folder"
        if groups["program and libraries"] == 0:
            yield "no library was counted"


def main():
    trireme, mpirun = os.path.abspath(sys.argv[1]), sys.argv[2]
    if shutil.which("strace") is None:
        print("skipped: no strace")
        sys.exit(77)
    probe = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        print("skipped: strace may not trace here:", probe.stderr)
        sys.exit(77)
    os.environ.update(OMP_NUM_THREADS="1")
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with open("deck.in", "w", encoding="utf-8") as deck:
            deck.write(DECK)
        subprocess.run([trireme, "-i", "deck.in", "job.task=tokenize", "tokenize.kind=harbour",
                        "tokenize.harbour_tokens=2000"], check=True, stdout=subprocess.DEVNULL)
        rows = {}
        for staging, ranks in (("node", 4), ("shared_memory", 2), ("stream", 2)):
            counts = traced(trireme, mpirun, ranks, staging)
            faults += check(counts, staging)
            rows[f"{staging}, first"] = counts[0]
            rows[f"{staging}, further"] = max(counts[1:], key=lambda groups: sum(groups[group] for group in OWN))
        os.chdir("/")
    print("| opened until the first step |", " | ".join(rows), "|")
    print("|---|" + "---:|" * len(rows))
    for group in GROUPS:
        print("|", group, "|", " | ".join(str(row[group]) for row in rows.values()), "|")
    print("| of its own |", " | ".join(str(sum(row[group] for group in OWN)) for row in rows.values()), "|")
    if faults:
        sys.exit("FAILED: " + "\n".join(faults))


main()
