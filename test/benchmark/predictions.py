#!/usr/bin/env python3
"""Predicted against actual: predictions.py TRIREME INPUT_FOLDER WORK_FOLDER MPIRUN [times|memory]

INPUT_FOLDER: the program's decks. Calibrates this machine (2 ranks of one thread, 1 rank of two), then trains short runs of several
decks and layouts and prints what summary.json says of each: the step's time by the calibration and as it was, for runs whose
ranks times threads are at most 2; the memory of the rank with the largest plan, for runs of 1 to 8 ranks. Nothing else may run beside it.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys

LAUNCH = pathlib.Path(__file__).parents[1] / "mpirun.sh"
# (deck, keys, ranks, threads, steps)
TIMES = [
    ("harbour", "", 1, 1, 60),
    ("harbour", "", 2, 1, 100),
    ("wikitext2_small", "", 1, 2, 60),
    ("wikitext2_small", "grid.sharding=optimizer", 2, 1, 60),
    ("wikitext2_jsc", "", 2, 1, 12),
    ("wikitext2_jsc", "grid.tensor=2", 2, 1, 12),
    ("equal_work", "grid.pipeline=2 data.micro_batch=1", 2, 1, 20),
    ("equal_work", "", 1, 2, 20),
    ("llama_wikitext2", "grid.sharding=parameters", 2, 1, 20),
    ("llama_wikitext2", "run.precision=fp64", 1, 1, 8),
    ("own_text", "grid.context=2 data.document_mask=no", 2, 1, 10),
    ("gpt2_124m", "model.layers=2 data.batch=4 data.micro_batch=1 data.sequence_length=512 data.stride=512", 2, 1, 6),
]
GPT = "data.sequence_length=256 data.stride=256 data.micro_batch=1 "
MEMORY = [
    ("gpt2_124m", GPT + "data.batch=2", 1, 2, 2),
    ("gpt2_124m", GPT + "data.batch=2 model.recompute=full run.precision=fp64", 1, 2, 2),
    ("gpt2_124m", GPT + "data.batch=2", 2, 1, 2),
    ("gpt2_124m", GPT + "data.batch=2 grid.tensor=2", 2, 1, 2),
    ("gpt2_124m", GPT + "data.batch=4 grid.pipeline=2", 2, 1, 2),
    ("gpt2_124m", GPT + "data.batch=2 grid.context=2 grid.sharding=optimizer", 2, 1, 2),
    ("gpt2_124m", GPT + "data.batch=4 grid.sharding=parameters", 4, 1, 2),
    ("gpt2_124m", GPT + "data.batch=4 grid.tensor=2 grid.sharding=optimizer", 4, 1, 2),
    ("equal_work", "model.dim=1024 model.heads=16 model.ffn=4096 data.batch=4 data.micro_batch=1 grid.pipeline=2", 4, 1, 2),
    ("llama3_1b", "run.precision=fp32 data.document_mask=no model.layers=4 data.sequence_length=128 data.stride=128 data.batch=8 data.micro_batch=1 "
     "grid.tensor=2 grid.pipeline=2 grid.sharding=optimizer", 8, 1, 1),
    ("gpt2_124m", GPT + "data.batch=8", 8, 1, 1),
    ("gpt2_124m", GPT + "data.batch=8 grid.pipeline=2 grid.tensor=2 grid.sharding=parameters", 8, 1, 1),
]


def launch(mpirun, ranks):
    return [] if ranks == 1 else ["bash", str(LAUNCH), mpirun, "-n", str(ranks)]


def train(arguments, name, deck, keys, ranks, threads, steps, tokens, machines):
    trireme, inputs, folder, mpirun = arguments
    run = folder / name
    shutil.rmtree(run, ignore_errors=True)
    command = [*launch(mpirun, ranks), trireme, "-i", f"{inputs}/{deck}.in", f"data.file={tokens}",
               "monitor.validate_every_steps=0", f"job.output={run}", f"schedule.steps={steps}", "schedule.warmup_steps=1",
               "checkpoint.every_steps=0", "monitor.sample_tokens=0", "monitor.report=no", f"run.threads={threads}",
               f"plan.machine={machines[threads]}", *keys.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(" ".join(map(str, command)) + "\n" + done.stdout + done.stderr)
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))


def main():
    trireme, inputs, folder, mpirun = (sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), sys.argv[4])
    parts = sys.argv[5:] or ["times", "memory"]
    os.environ["OMP_NUM_THREADS"] = "1"
    folder.mkdir(parents=True, exist_ok=True)
    tokens = folder / "harbour.h5"
    if not tokens.exists():
        subprocess.run([trireme, "-i", f"{inputs}/harbour.in", "job.task=tokenize", "tokenize.kind=harbour", f"data.file={tokens}"],
                       check=True)
    machines = {}
    for ranks, threads in ((2, 1), (1, 2)):
        machines[threads] = folder / f"machine_{ranks}x{threads}.in"
        if not machines[threads].exists():
            subprocess.run([*launch(mpirun, ranks), trireme, "--calibrate", machines[threads], f"run.threads={threads}"], check=True)
    arguments = trireme, inputs, folder, mpirun
    for part, cases in (("times", TIMES), ("memory", MEMORY)):
        if part not in parts:
            continue
        print(f"| {part}: deck | layout | ranks x threads | predicted | actual | ratio |\n|---|---|---|---|---|---|")
        for number, case in enumerate(cases):
            deck, keys, ranks, threads = case[:4]
            found = train(arguments, f"{part}_{number}", *case, tokens, machines)["predicted"]
            if part == "times":
                step = next(term for term in found["terms"] if term["term"] == "step")
                of_plan, of_run, unit = 1e3 * step["predicted_seconds"], 1e3 * step["seconds"], "ms"
            else:
                of_plan, of_run, unit = found["planned_bytes"] / 2**20, found["used_bytes"] / 2**20, "MiB"
            print(f"| {deck} | {keys} | {ranks} x {threads} | {of_plan:.4g} {unit} | {of_run:.4g} {unit} | {of_plan / of_run:.3f} |",
                  flush=True)


if __name__ == "__main__":
    main()
