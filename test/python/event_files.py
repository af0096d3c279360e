"""event_files.py TRIREME MPIRUN: TensorBoard's event files of a training, read by TensorBoard's own package.
Code 77: skipped, saying why."""

import json
import math
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

try:
    import numpy
    import tensorboard.plugins.hparams.metadata as hparams
    from tensorboard import plugin_util
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)

from hf_run import Program

DECK = """[job]
output = run
[data]
file = <b>sea.h5
sequence_length = 16
stride = 16
batch = 8
[model]
dim = 32
heads = 2
layers = 2
ffn = 64
max_positions = 16
dropout = 0.1
[optimizer]
learning_rate = 3e-3
[schedule]
steps = 40
warmup_steps = 4
[checkpoint]
every_steps = 10
keep = 0
[monitor]
every_steps = 5
validate_every_steps = 10
sample_tokens = 8
histogram_every_steps = 10
"""
# Tags by members of records of metrics.jsonl.
STEP = {"loss": "loss/train", "perplexity": "perplexity/train", "learning_rate": "optimizer/learning_rate",
        "grad_norm": "optimizer/gradient_norm", "step_seconds": "perf/step_seconds",
        "tokens_per_second": "perf/tokens_per_second"}
INTERVAL = {"epoch": "progress/epoch", "tokens": "progress/tokens", "flops_per_second": "perf/flops_per_second",
            "roof_fraction": "perf/roof_fraction", "seconds_compute": "time/compute",
            "seconds_exposed_communication": "time/exposed_communication", "seconds_bubble": "time/bubble",
            "seconds_data": "time/data", "seconds_checkpoint": "time/checkpoint", "memory_bytes": "memory/bytes",
            "bad_steps": "steps/bad", "slowest_rank": "ranks/slowest", "seconds_slowest": "ranks/seconds_slowest"}
SPLIT = {"loss": "loss/{}", "perplexity": "perplexity/{}", "step_seconds": "perf/{}_seconds"}
OPTIONAL = {"memory/rank"}


def reader(folder):
    """Everything in a run's event files: nothing is sampled."""
    events = EventAccumulator(f"{folder}/tensorboard", size_guidance={"scalars": 0, "tensors": 0, "histograms": 0})
    events.Reload()
    return events


def records(folder):
    with open(f"{folder}/metrics.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def expected_scalars(folder):
    """{tag: [(step, float32)]} of metrics.jsonl."""
    scalars = {}
    for record in records(folder):
        members = {"step": STEP, "interval": INTERVAL}.get(record["kind"])
        if record["kind"] in ("valid", "test"):
            members = {member: tag.format(record["kind"]) for member, tag in SPLIT.items()}
        for member, tag in (members or {}).items():
            scalars.setdefault(tag, []).append((record["step"], float(numpy.float32(record[member]))))
    return scalars


def check_scalars(folder, events):
    expected = expected_scalars(folder)
    assert set(expected) == set(events.Tags()["scalars"]) - OPTIONAL, (set(expected), events.Tags()["scalars"])
    for tag, values in expected.items():
        found = [(event.step, event.value) for event in events.Scalars(tag)]
        assert found == values, f"{folder}: {tag}:\n{found}\n{values}"


def checkpoint_tensors(path):
    data = pathlib.Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    return {name: numpy.frombuffer(data[8 + length + entry["data_offsets"][0]:8 + length + entry["data_offsets"][1]], "<f4")
            for name, entry in header.items() if name != "__metadata__"}


def check_weights(folder, events, step):
    """Histograms of weights are those of the checkpoint of the same step."""
    tensors = checkpoint_tensors(f"{folder}/checkpoints/step_{step:08}/model.safetensors")
    tags = [tag for tag in events.Tags()["histograms"] if tag.startswith("weights/")]
    assert sorted(tags) == sorted(f"weights/{name}" for name in tensors)
    for name, tensor in tensors.items():
        wide = tensor.astype(numpy.float64)
        found = next(event.histogram_value for event in events.Histograms(f"weights/{name}") if event.step == step)
        assert (found.num, found.min, found.max) == (wide.size, wide.min(), wide.max()), name
        assert (found.sum, found.sum_squares) == (math.fsum(wide), math.fsum(wide * wide)), name
        limits = numpy.array(found.bucket_limit)
        counts = numpy.bincount(numpy.searchsorted(limits, wide, side="right"), minlength=len(limits))
        assert counts.tolist() == found.bucket, name


def check_gradients(folder, events):
    """Their squares make up the norms that were recorded."""
    norms = {record["step"]: record["grad_norm"] for record in records(folder) if record["kind"] == "step"}
    tags = [tag for tag in events.Tags()["histograms"] if tag.startswith("gradients/")]
    steps = [event.step for event in events.Histograms(tags[0])]
    assert steps == [10, 20, 30, 40], steps
    for at, step in enumerate(steps):
        norm = math.sqrt(sum(events.Histograms(tag)[at].histogram_value.sum_squares for tag in tags))
        assert abs(norm - norms[step]) < 1e-5 * norm, (step, norm, norms[step])


def check_texts(folder, events):
    layout = events.Tensors("layout")[0].tensor_proto.string_val[0]
    html = plugin_util.markdown_to_safe_html(layout)
    assert "pipeline 1 x data 1" in html and "&lt;b&gt;sea.h5" in html and "<b>" not in html, html
    assert events.Tensors("sample")[-1].step == 40 and events.Tensors("sample")[-1].tensor_proto.string_val[0].strip()
    assert b"checkpoint" in events.Tensors("events")[0].tensor_proto.string_val[0]
    start = hparams.parse_session_start_info_plugin_data(
        events.SummaryMetadata(hparams.SESSION_START_INFO_TAG).plugin_data.content)
    assert start.hparams["optimizer.learning_rate"].number_value == 3e-3
    assert start.hparams["model.norm"].string_value == "layernorm" and start.hparams["model.bias"].bool_value
    end = hparams.parse_session_end_info_plugin_data(
        events.SummaryMetadata(hparams.SESSION_END_INFO_TAG).plugin_data.content)
    assert end.status == 1


def histograms(folder):
    events = reader(folder)
    return {tag: [(event.step, event.histogram_value) for event in events.Histograms(tag)]
            for tag in events.Tags()["histograms"]}


def same_bytes(one, other):
    for name in ("model", "optimizer"):
        path = f"checkpoints/step_00000040/{name}.safetensors"
        assert pathlib.Path(one, path).read_bytes() == pathlib.Path(other, path).read_bytes(), (other, path)


def check_run(program):
    program(1, "-i", "deck.in")
    events = reader("run")
    check_scalars("run", events)
    check_weights("run", events, 20)
    check_weights("run", events, 40)
    check_gradients("run", events)
    check_texts("run", events)
    # Looking changes nothing; without TensorBoard there is no folder.
    program(1, "-i", "deck.in", "job.output=plain", "monitor.histogram_every_steps=0")
    assert not reader("plain").Tags()["histograms"]
    program(1, "-i", "deck.in", "job.output=none", "monitor.histogram_every_steps=0", "monitor.tensorboard=no")
    assert not pathlib.Path("none/tensorboard").exists()
    same_bytes("run", "plain")
    same_bytes("run", "none")
    text = program(1, "-i", "deck.in", "monitor.tensorboard=no", "job.output=refused", expected=2)
    assert "monitor.histogram_every_steps" in text and not pathlib.Path("refused").exists(), text


def check_resumed(program):
    """A run that goes on from an earlier checkpoint shows each step once, to a reader that has seen more, too."""
    program(1, "-i", "deck.in", "job.output=parts", "schedule.stop_at=27")
    watching = reader("parts")
    assert watching.Scalars("loss/train")[-1].step == 27
    program(1, "-r", "parts/checkpoints/step_00000020", "schedule.stop_at=33")
    program(1, "-r", "parts/checkpoints/step_00000020", "schedule.stop_at=31")
    program(1, "-r", "parts/checkpoints/step_00000030")
    watching.Reload()
    for events in (watching, reader("parts")):
        check_scalars("parts", events)
        assert [(event.step, event.value) for event in events.Scalars("loss/train")] == \
            [(event.step, event.value) for event in reader("run").Scalars("loss/train")]
    whole, parts = histograms("run"), histograms("parts")
    assert whole == parts
    assert len(os.listdir("parts/tensorboard")) == 3
    # Done, and gone on with from the middle: the end that was is none.
    assert [event.step for event in reader("parts").Tensors(hparams.SESSION_END_INFO_TAG)] == [40]
    program(1, "-r", "parts/checkpoints/step_00000030", "schedule.stop_at=35")
    assert [event.step for event in reader("parts").Tensors(hparams.SESSION_END_INFO_TAG)] == [35]


def check_layouts(program):
    """With canonical arithmetic all layouts have the same bits: so have the histograms of whole tensors."""
    layouts = {"one": (1, []), "tensor": (2, ["grid.tensor=2"]), "pipeline": (2, ["grid.pipeline=2"]), "data": (2, []),
               "sharded": (2, ["grid.sharding=parameters"]),
               "mixed": (4, ["grid.tensor=2", "grid.sharding=gradients", "model.tie_embeddings=yes"])}
    found = {}
    for name, (ranks, keys) in layouts.items():
        program(ranks, "-i", "deck.in", f"job.output={name}", "run.canonical=2x2", "schedule.steps=10", *keys)
        found[name] = histograms(name)
    for name in set(layouts) - {"mixed"}:
        assert found[name] == found["one"], name
    program(1, "-i", "deck.in", "job.output=tied", "run.canonical=2x2", "schedule.steps=10", "model.tie_embeddings=yes")
    assert found["mixed"] == histograms("tied")


def check_going_back(program):
    """A run that goes back from spikes of the loss shows each step once."""
    random.seed(3)
    for name, count, senseless in (("train", 6400, range(3200, 3248)), ("valid", 200, ())):
        word, text = 0, []
        for i in range(count):
            lost = i in senseless or random.random() < 0.05
            word = random.randrange(32) if lost else (5 * word + 7) % 32
            text.append(f"w{word}")
        pathlib.Path(f"{name}.txt").write_text(" ".join(text) + "\n")
    program(1, "-i", "deck.in", "job.task=tokenize", "tokenize.train=train.txt", "tokenize.valid=valid.txt",
            "tokenize.test=valid.txt", "data.file=spiky.h5")
    text = program(1, "-i", "deck.in", "job.output=back", "data.file=spiky.h5", "schedule.epochs=1.5", "checkpoint.every_steps=16",
                   "run.spike_window=20", "run.on_spike=rollback", "data.batch=4", "model.dropout=0",
                   "optimizer.learning_rate=1e-2", "monitor.validate_every_steps=0", "monitor.histogram_every_steps=0",
                   "checkpoint.keep=0")
    assert "rollbacks" in text, text
    assert len(os.listdir("back/tensorboard")) > 1
    check_scalars("back", reader("back"))
    steps = [event.step for event in reader("back").Scalars("loss/train")]
    assert steps == list(range(1, len(steps) + 1)), steps


def check_no_folder(program):
    """TensorBoard's folder cannot be made: one warning, and the run is done."""
    pathlib.Path("blocked").mkdir()
    pathlib.Path("blocked/tensorboard").write_text("a file")
    text = program(1, "-i", "deck.in", "job.output=blocked")
    assert text.count("warning: blocked/tensorboard: cannot be made") == 1, text
    assert text.count("tensorboard: ") == 1, text


class Server:
    """TensorBoard on all runs in this folder, as a user starts it."""

    def __enter__(self):
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", ".", "--port", "0", "--reload_interval", "1"]
        self.log = open("server.log", "w+", encoding="utf-8")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.home = self.wait(lambda: re.search(r"http://localhost:\d+/", pathlib.Path("server.log").read_text()))[0]
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.log.close()

    def wait(self, ready):
        for _ in range(600):
            found = ready()
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError("TensorBoard does not come up:\n" + pathlib.Path("server.log").read_text())

    def ask(self, path, post=None, **arguments):
        url = f"{self.home}data/{path}?{urllib.parse.urlencode(arguments)}"
        data = None if post is None else json.dumps(post).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


def check_columns(server):
    """HParams has a column for each key of any run and for each curve, and knows which keys differ: TensorBoard finds that
    out from the sessions of all runs, unless one run's files hold an experiment, whose columns would be the only ones."""
    runs = [path.parent.parent.name for path in pathlib.Path(".").glob("*/tensorboard/events*")]
    starts = {}
    for run in set(runs):
        content = reader(run).SummaryMetadata(hparams.SESSION_START_INFO_TAG).plugin_data.content
        starts[run] = hparams.parse_session_start_info_plugin_data(content).hparams
    experiment = server.ask("plugin/hparams/experiment", {"experimentName": "", "includeMetrics": True, "hparamsLimit": 0})
    columns = {info["name"]: info for info in experiment["hparamInfos"]}
    assert set(columns) == {key for start in starts.values() for key in start}, "keys without a column"
    assert len(starts) > 3 and "model.tie_embeddings" in columns and len(columns) > 40, (sorted(starts), len(columns))
    for name, info in columns.items():
        values = {str(start[name]) for start in starts.values() if name in start}
        assert info.get("differs", False) == (len(values) > 1), (name, values, info)
    differing = {name for name, info in columns.items() if info.get("differs")}
    assert {"run.canonical", "schedule.steps"} <= differing, differing
    metrics = {info["name"]["tag"] for info in experiment["metricInfos"]}
    assert {"loss/train", "loss/valid", "loss/test", "perf/tokens_per_second"} <= metrics, metrics


def check_server(_):
    """Checks TensorBoard's own view of a whole run and of a resumed one, and that a browser gets a page of it."""
    wanted = {"run/tensorboard", "parts/tensorboard"}
    with Server() as server:
        server.wait(lambda: wanted <= set(server.ask("runs")))
        for run in sorted(wanted):
            steps = 40 if run.startswith("run") else 35
            server.wait(lambda: len(server.ask("plugin/scalars/scalars", run=run, tag="loss/train")) == steps)
            found = server.ask("plugin/scalars/scalars", run=run, tag="loss/train")
            expected = expected_scalars(run.split("/")[0])["loss/train"]
            assert [(step, numpy.float32(value)) for _, step, value in found] == expected, (found, expected)
        text = server.ask("plugin/text/text", run="run/tensorboard", tag="layout")[0]["text"]
        assert text.startswith("<pre>") and "&lt;b&gt;sea.h5" in text, text
        tags = server.ask("plugin/histograms/tags")["run/tensorboard"]
        assert "gradients/blocks.1.ffn.down.weight" in tags and "weights/embedding.token.weight" in tags
        sessions = server.ask("plugin/hparams/session_groups", {
            "experimentName": "", "startIndex": 0, "sliceSize": 100, "colParams": [],
            "allowedStatuses": ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]})["sessionGroups"]
        session = next(each for each in sessions if each["name"] == "run/tensorboard")
        assert session["hparams"]["optimizer.learning_rate"] == 3e-3 and session["sessions"][0]["status"] == "STATUS_SUCCESS"
        metrics = {value["name"]["tag"]: value["value"] for value in session["metricValues"]}
        assert numpy.float32(metrics["loss/test"]) == expected_scalars("run")["loss/test"][-1][1]
        check_columns(server)
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if not chromium:
            print("no Chromium here: the page was not looked at")
            return
        page = subprocess.run([chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=15000",
                               f"--user-data-dir={os.getcwd()}/chromium", "--dump-dom", f"{server.home}#timeseries"],
                              capture_output=True, text=True, timeout=120).stdout
        for run in wanted:
            assert run in page, f"{run} is not on the page"


def main():
    program = Program(os.path.abspath(sys.argv[1]), sys.argv[2])
    with tempfile.TemporaryDirectory() as home:
        os.chdir(home)
        pathlib.Path("deck.in").write_text(DECK)
        program(1, "-i", "deck.in", "job.task=tokenize", "tokenize.kind=harbour", "tokenize.harbour_tokens=2000")
        for check in (check_run, check_resumed, check_layouts, check_server, check_going_back, check_no_folder):
            check(program)
            print(f"{check.__name__}: passed")
        os.chdir("/")


main()
