"""vis/loss_curve.py reads records of every version and of any length, and loses no spike; vis/search.py finds the better
of two rates by real runs. Exit code 77 without matplotlib.

    python3 test/python/curves.py vis/loss_curve.py vis/search.py build/trireme
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

if importlib.util.find_spec("matplotlib") is None:
    sys.exit(77)


def load(path):
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


loss_curve, search = load(sys.argv[1]), load(sys.argv[2])


def line(kind, step, loss, **more):
    return json.dumps({"kind": kind, "step": step, "epoch": 0.5, "loss": loss, "perplexity": 2.5, **more},
                      separators=(",", ":")) + "\n"


with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "metrics.jsonl")
    path.write_text(
        line("step", 1, 7.5) + line("step", 2, 1e-05) + line("step", 3, None)
        + line("interval", 3, None, steps=3, loss_min=1.0)
        + line("valid", 3, 6.5) + line("valid_other", 3, 5.5, set="code")
        + '{"kind":"event","event":"spike","step":3,"loss":99}\n'
        + line("step", 50, 6.25, sources={"a.h5": 3})  # of an older version
        + line("step", 51, 6.0)[:40], encoding="utf-8")
    records = loss_curve.read_run(folder)
    assert records["step"] == ([1, 2, 50], [7.5, 1e-05, 6.25]), records["step"]
    assert records["valid"] == ([3], [6.5]), records["valid"]

    many = 100_000
    path.write_text("".join(line("step", step, 30.0 if step == many // 3 else 2 + 1 / step)
                            for step in range(1, many + 1)), encoding="utf-8")
    steps, losses = loss_curve.thin(*loss_curve.read_run(path)["step"])
    assert len(steps) <= 2 * loss_curve.COLUMNS and steps == sorted(set(steps))
    assert (steps[0], max(losses), min(losses)) == (1, 30.0, 2 + 1 / many), (steps[0], max(losses), min(losses))
    assert steps[losses.index(30.0)] == many // 3
    assert loss_curve.thin([1, 2], [3.0, 4.0]) == ([1, 2], [3.0, 4.0])

    assert 2 <= len(loss_curve.perplexity_ticks(1, 30)) <= 12
    assert [value for _, value in loss_curve.perplexity_ticks(4, 7)] == [100, 200, 500, 1000]
    subprocess.run([sys.executable, sys.argv[1], folder, "-o", folder + "/loss.svg", "--smooth", "0.9"], check=True,
                   stdout=subprocess.DEVNULL)
    assert pathlib.Path(folder, "loss.svg").stat().st_size < 1 << 20

    # Without matplotlib every script says what is missing, with exit code 4.
    pathlib.Path(folder, "matplotlib.py").write_text("raise ImportError(\"No module named 'matplotlib'\")\n", encoding="utf-8")
    for name in ("loss_curve.py", "gantt.py", "course.py", "report.py"):
        script = pathlib.Path(sys.argv[1]).parent / name
        result = subprocess.run([sys.executable, script, folder] + ([folder] if name != "gantt.py" else []), capture_output=True, text=True, check=False,
                                env=os.environ | {"PYTHONPATH": folder})
        assert result.returncode == 4 and "Traceback" not in result.stderr, (name, result.returncode, result.stderr)
        assert f"{name}: No module named 'matplotlib'" in result.stderr and "pip install matplotlib" in result.stderr, result.stderr

assert search.candidates([]) == [[]]
assert search.candidates(["a=1|2 b=x|y", "a=2 b=x", "c='1, 2'"]) == [
    ["a=1", "b=x"], ["a=1", "b=y"], ["a=2", "b=x"], ["a=2", "b=y"], ["c=1, 2"]]
with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    deck = root / "deck.in"
    deck.write_text(f"[data]\nfile = {root}/h.h5\nsequence_length = 16\nbatch = 8\n[tokenize]\nkind = harbour\nharbour_tokens = 20000\n"
                    "[model]\ndim = 16\nheads = 2\nlayers = 1\n[optimizer]\nlearning_rate = 1e-2\n[schedule]\nwarmup_steps = 3\n",
                    encoding="utf-8")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    subprocess.run([sys.argv[3], "-i", deck, "job.task=tokenize"], check=True, stdout=subprocess.DEVNULL, env=environment)

    def find(*settings):
        return subprocess.run([sys.executable, sys.argv[2], deck, root / "found", *settings, "--minutes", "0.01", "0.03", "--keep", "0.5",
                               "--launch", sys.argv[3]], capture_output=True, text=True, check=False, env=environment)
    left = root / "found/000/probe"  # by a search that was interrupted
    left.mkdir(parents=True)
    (left / "metrics.jsonl").write_text("{}\n", encoding="utf-8")
    first = find("optimizer.learning_rate=1e-9|1e-2", "model.dim=0")
    assert first.returncode == 0 and "model.dim" in first.stdout, first
    rows = json.loads((root / "found/search.json").read_text(encoding="utf-8"))
    assert [(row["settings"], row["minutes"]) for row in rows] == [
        (["optimizer.learning_rate=1e-9"], 0.01), (["optimizer.learning_rate=1e-2"], 0.01), (["model.dim=0"], 0.01),
        (["optimizer.learning_rate=1e-2"], 0.03)], rows
    assert "valid" not in rows[2] and rows[1]["valid"] < rows[0]["valid"] - 0.2 and rows[3]["steps"] > rows[1]["steps"], rows
    table = (root / "found/search.md").read_text(encoding="utf-8").splitlines()
    assert table[2].startswith("| optimizer.learning_rate=1e-2 |") and len(table) == 4, table
    assert (root / "found/search.svg").stat().st_size > 1000
    runs = sorted(path.name for path in (root / "found").iterdir())
    again = find("optimizer.learning_rate=1e-9|1e-2", "model.dim=0")  # nothing is run twice
    assert again.returncode == 0 and runs == sorted(path.name for path in (root / "found").iterdir()), again
    assert find("model.dim=0").returncode == 1
    grows = find("schedule.batch_ramp=9 schedule.warmup_steps=1")
    assert grows.returncode == 1 and "schedule.batch_ramp" in grows.stderr, grows
    assert find("nonsense").returncode == 2
