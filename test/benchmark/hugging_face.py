"""Import and export of a model folder against copying the bytes that they write, with fsync: each
task and a copy in turn. A figure is the median of the pairs' ratios (seconds of the copy over those of
the task), with the smallest and the largest.

usage: hugging_face.py TRIREME FOLDER [PAIRS] [gpt2|llama] [LAYERS] [RANKS] [warm|cold]
gpt2: fp32, the shape of GPT-2 124M; llama: bf16, that of Llama 3.2 1B, of which import writes twice the bytes.
warm: what is read lies in the system's memory; cold: it is dropped before each copy and each task.
FOLDER: on the disk to measure; 5 times the model's size is written there and removed at the end.
"""

import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))
import hf_models  # noqa: E402
import hf_run  # noqa: E402

PIECE = 4 << 20


def copy(sources, folder):
    """Seconds to copy the files, as `cp` and fsync would."""
    begin = time.monotonic()
    folder.mkdir()
    for source in sources:
        to = os.open(folder / source.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with open(source, "rb", buffering=0) as file:
            piece = bytearray(PIECE)
            while got := file.readinto(piece):
                os.write(to, memoryview(piece)[:got])
        os.fsync(to)
        os.close(to)
    return time.monotonic() - begin


def run(command, folder):
    """Seconds, and those of processors, of a command that makes the folder."""
    before, begin = os.times(), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds, after = time.monotonic() - begin, os.times()
    assert done.returncode == 0, done.stdout + done.stderr
    assert folder is None or folder.exists()
    computed = sum(after[2:4]) - sum(before[2:4])
    return seconds, computed


def drop(folder):
    for path in folder.rglob("*.safetensors"):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def fresh(*folders):
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os.sync()


def model(kind, layers):
    if kind == "gpt2":  # the shape of GPT-2 124M
        shape = {"n_embd": 768, "n_head": 12, "n_positions": 1024, "n_ctx": 1024, "vocab_size": 50257}
        return {**hf_models.GPT2, **shape, "n_layer": layers}, "F32"
    shape = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}
    return hf_models.llama(**shape, num_hidden_layers=layers, vocab_size=32000), "BF16"


def report(name, size, copies, tasks, start):
    ratios = sorted(c / t for c, (t, _) in zip(copies, tasks))
    seconds = statistics.median(t for t, _ in tasks)
    print(
        f"{name}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) of the copy's speed; "
        f"{size / 1e6:.0f} MB written in {seconds:.2f} s ({statistics.median(c for _, c in tasks):.2f} s of processors), "
        f"copied in {statistics.median(copies):.2f} s; without reading and writing (-v): {start:.2f} s",
        flush=True,
    )


def main():
    trireme, folder = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2])
    pairs = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    kind = sys.argv[4] if len(sys.argv) > 4 else "gpt2"
    layers = int(sys.argv[5]) if len(sys.argv) > 5 else 24
    ranks = int(sys.argv[6]) if len(sys.argv) > 6 else 1
    cold = sys.argv[7:] == ["cold"]
    os.environ.pop("OMP_NUM_THREADS", None)
    program = hf_run.Program(trireme, "mpirun")  # sets the environment
    del os.environ["OMP_NUM_THREADS"]  # all cores, as without a word of the user's
    launch = [] if ranks == 1 else [*program.mpirun, str(ranks)]
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    source, imported, exported, copied = (pathlib.Path(name) for name in ("source", "run", "out", "copy"))
    fresh(source, imported, exported, copied)
    pathlib.Path("deck.in").write_text(hf_run.DECK, encoding="utf-8")
    hf_models.make(source, *model(kind, layers))
    tasks = {
        "import": launch + [trireme, "-i", "deck.in", "job.task=import", f"hf.path={source}", f"job.output={imported}"],
        "export": launch + [trireme, "-r", str(imported), "job.task=export", f"hf.path={exported}"],
    }
    for name, read, made in (("import", source, imported), ("export", imported, exported)):
        fresh(made)
        run(tasks[name], made)
        files = sorted(made.rglob("*.safetensors"))
        size = sum(path.stat().st_size for path in files)
        keep = pathlib.Path("written")
        fresh(keep)
        copy(files, keep)  # the bytes to copy, in memory
        times, seconds = [], []
        start = statistics.median(run(tasks[name] + ["-v"], None)[0] for _ in range(3)) if name == "export" else None
        for _ in range(pairs):
            fresh(copied)
            if cold:
                drop(keep)
            times.append(copy(sorted(keep.iterdir()), copied))
            fresh(made, copied)
            if cold:
                drop(read)
            seconds.append(run(tasks[name], made))
        if start is None:
            aside = made.with_name("aside")
            made.rename(aside)  # -v refuses a run folder that is there
            start = statistics.median(run(tasks[name] + ["-v"], None)[0] for _ in range(3))
            aside.rename(made)
        label = f"{name}, {kind}, {ranks} rank{'s' if ranks > 1 else ''}, {'cold' if cold else 'warm'}"
        report(label, size, times, seconds, start)
    fresh(source, imported, exported, copied, pathlib.Path("written"))


main()
