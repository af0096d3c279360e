"""upload.py HELPER: run folders sent to Weights & Biases (offline files) and MLflow (a folder), read back with their
packages. Code 77: skipped, saying why."""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

HELPER = os.path.abspath(sys.argv[1])
os.environ.update(MLFLOW_ALLOW_FILE_STORE="true", WANDB_SILENT="true", GIT_PYTHON_REFRESH="quiet")


def have(package):
    try:
        __import__(package)
        return True
    except ImportError as error:
        print(f"SKIPPED: {error}")
        return False


def call(*arguments, code=0, **environment):
    command = [sys.executable, HELPER, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    text = done.stdout + done.stderr
    assert done.returncode == code, f"{command}: exit code {done.returncode}\n{text}"
    return text


def loss(step):
    return 7 / step + 0.1


def write_run(folder, first, last, mode="w", done=False):
    """Steps, an interval every 5, a validation every 10; a torn line at the end unless done."""
    folder.mkdir(exist_ok=True)
    with open(folder / "metrics.jsonl", mode, encoding="utf-8") as file:
        def put(**record):
            file.write(json.dumps(record) + "\n")
        for step in range(first, last + 1):
            put(kind="step", step=step, tokens=100 * step, loss=loss(step), grad_norm=None if step == 3 else 1 / step,
                step_seconds=0.25, seconds_compute=0.2)
            if step % 5 == 0:
                put(kind="interval", step=step, steps=5, loss_min=loss(step), flops_per_second=1e9 + step, seconds_compute=0.1,
                    joules=step / 2, memory_host="node", sources={"a.h5": step})
            if step % 10 == 0:
                put(kind="valid", step=step, loss=2 * loss(step), perplexity=9.5, step_seconds=1.5)
                put(kind="valid_other", set="books", step=step, loss=3 * loss(step))
                put(kind="event", event="checkpoint", step=step, rank=0, host="n", text="written <b>")
        if done:
            put(kind="done", step=last, loss=loss(last))
        else:
            file.write('{"kind": "step", "st')
    (folder / "deck.in").write_text("[model]\ndim = 32  # deck.in:2\npreset =\n[optimizer]\nlearning_rate = 2e-3\nkind = adamw\n")
    if done:
        (folder / "summary.json").write_text(json.dumps({
            "format": 1, "losses": {"test": 1.25, "entropy_floor": None}, "speed": {"tokens_per_second": 500.0},
            "samples": ["a <script>"], "deck": {"model.dim": "32", "optimizer.learning_rate": "2e-3", "optimizer.kind": "adamw"}}))


def expected(last):
    """{name: {step: number}} of steps 1 to last."""
    steps, tens, fives = range(1, last + 1), range(10, last + 1, 10), range(5, last + 1, 5)
    return {"loss/train": {s: loss(s) for s in steps}, "progress/tokens": {s: 100 * s for s in steps},
            "optimizer/gradient_norm": {s: 1 / s for s in steps if s != 3}, "time/compute": {s: 0.2 for s in steps},
            "perf/step_seconds": {s: 0.25 for s in steps}, "perf/flops_per_second": {s: 1e9 + s for s in fives},
            "interval/loss_min": {s: loss(s) for s in fives}, "energy/joules": {s: s / 2 for s in fives},
            "sources/a.h5": {s: s for s in fives}, "loss/valid": {s: 2 * loss(s) for s in tens},
            "perplexity/valid": {s: 9.5 for s in tens}, "perf/valid_seconds": {s: 1.5 for s in tens},
            "loss/valid_books": {s: 3 * loss(s) for s in tens}}


def wandb_records(path):
    """Records of an offline file: a log in LevelDB's format after 7 bytes."""
    from wandb.proto import wandb_internal_pb2
    data, at, part = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        _, length, kind = struct.unpack("<IHB", data[at:at + 7]) if left >= 7 else (0, 0, 0)
        if kind == 0:
            at += left
            continue
        part, at = part + data[at + 7:at + 7 + length], at + 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(part)
            part = b""
            yield record


def name_of(item):
    return item.key or ".".join(item.nested_key)


def read_wandb(folder):
    """(ids, configuration, final values, {name: {step: number}}); each step must come once."""
    ids, config, summary, history = set(), {}, {}, {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in wandb_records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                ids.add(record.run.run_id)
                config.update({name_of(item): json.loads(item.value_json) for item in record.run.config.update})
            elif kind == "summary":
                summary.update({name_of(item): json.loads(item.value_json) for item in record.summary.update})
            elif kind == "history":
                values = {name_of(item): json.loads(item.value_json) for item in record.history.item}
                step = values.pop("_step")
                for name, value in values.items():
                    assert step not in history.setdefault(name, {}), (name, step)
                    history[name][step] = value
    return ids, config, summary, {name: values for name, values in history.items() if not name.startswith("_")}


def check_wandb():
    run = pathlib.Path("one")
    write_run(run, 1, 12)
    assert "11 steps sent" in call("wandb", "one", "--offline", "--project", "ships")
    assert read_wandb(run)[3] == expected(11)
    assert "nothing new" in call("wandb", "one", "--offline", "--project", "ships")
    write_run(run, 1, 30, done=True)
    assert "19 steps sent" in call("wandb", "one", "--offline", "--project", "ships")
    ids, config, summary, history = read_wandb(run)
    assert history == expected(30) and len(ids) == 1
    assert config["model.dim"] == 32 and config["optimizer.learning_rate"] == 2e-3 and config["optimizer.kind"] == "adamw"
    assert summary["final/losses_test"] == 1.25 and summary["samples"] == "a <script>"
    assert "step 30: checkpoint: written <b>" in summary["events"]
    assert list(run.glob("wandb/offline-run-*/files/summary.json"))
    assert "nothing new" in call("wandb", "one", "--offline", "--project", "ships")
    assert "30 steps sent" in call("wandb", "one", "--offline", "--project", "ships", "--again")


def check_mlflow():
    import mlflow.tracking
    run = pathlib.Path("two")
    write_run(run, 1, 12)
    assert "11 steps sent" in call("mlflow", "two", "--uri", "store", "--experiment", "ships")
    write_run(run, 1, 30, done=True)
    write_run(pathlib.Path("three"), 1, 5, done=True)
    text = call("mlflow", "two", "three", "--uri", "store", "--experiment", "ships")
    assert "two: 19 steps sent" in text and "three: 5 steps sent" in text
    assert "nothing new" in call("mlflow", "two", "--uri", "store", "--experiment", "ships")
    client = mlflow.tracking.MlflowClient(tracking_uri=pathlib.Path("store").resolve().as_uri())
    experiment = client.get_experiment_by_name("ships")
    runs = {each.info.run_name: each for each in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"two", "three"} and runs["two"].info.status == "FINISHED"
    known = runs["two"].info.run_id
    found = {}
    for name in runs["two"].data.metrics:
        history = sorted(client.get_metric_history(known, name), key=lambda metric: metric.step)
        found[name] = {metric.step: metric.value for metric in history}
        assert len(history) == len(found[name]), name
        assert all(one.timestamp <= other.timestamp for one, other in zip(history, history[1:])), name
    final = {name: found.pop(name) for name in list(found) if name.startswith("final/")}
    assert found == expected(30)
    assert final == {"final/losses_test": {30: 1.25}, "final/speed_tokens_per_second": {30: 500.0}}
    assert runs["two"].data.params == {"model.dim": "32", "optimizer.learning_rate": "0.002", "optimizer.kind": "adamw"}
    files = {item.path for item in client.list_artifacts(known)}
    assert files == {"deck.in", "summary.json", "samples.txt", "events.txt"}, files


def check_refusals():
    assert "none/metrics.jsonl: cannot be read" in call("mlflow", "none", code=1)
    write_run(pathlib.Path("four"), 1, 5)
    pathlib.Path("empty").mkdir()
    for name in ("wandb", "mlflow"):  # a package that is not there
        pathlib.Path(f"empty/{name}.py").write_text("raise ImportError('no such package')\n")
        text = call(name, "four", code=1, PYTHONPATH="empty")
        assert "Install it: " in text and "Traceback" not in text, text
    pathlib.Path("four/upload.json").write_text("{")
    assert "four/upload.json: cannot be read" in call("mlflow", "four", "--uri", "store", code=1)
    text = call("--help")
    assert "wandb|mlflow" in text and "--offline" in call("wandb", "--help") and "--uri" in call("mlflow", "--help")


def main():
    packages = [name for name in ("wandb", "mlflow") if have(name)]
    if not packages:
        sys.exit(77)
    with tempfile.TemporaryDirectory() as home:
        os.chdir(home)
        if "wandb" in packages:
            check_wandb()
        if "mlflow" in packages:
            check_mlflow()
            check_refusals()
        os.chdir("/")
    print(f"passed: {', '.join(packages)}")


main()
