"""Runs the same launches with an old and a new build of Trireme and compares everything that they leave behind.

usage: same_bits.py [--quick] [--break] OLD_BUILD NEW_BUILD [OLD_EMULATED NEW_EMULATED]

Each build works in a folder of its own with the same inputs. A launch leaves files (token files, run folders, exports,
results) and its two output streams. At the end the two folders are compared file by file: bytes are compared as they
are; of JSON and of texts, what was measured (times, speeds, memory in use) or names the build is left out.
--quick leaves out launches of more than two ranks and the emulated builds. --break gives one key of one deck of the
new build another value, so that the comparison must fail.
"""

import argparse
import concurrent.futures
import gzip
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time

import h5py
import numpy

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "python"))
from texts import WORDS, small_bpe  # noqa: E402

# ---- The decks. Each has the keys of `common` too. "section: key=value ... | section: ..." becomes the deck's text.
DECKS = {
    "common": "run: device=cpu | data: file=harbour.h5 sequence_length=16 batch=8 | model: dim=32 heads=4 layers=4 ffn=64"
    " max_positions=16 | optimizer: learning_rate=3e-3 | schedule: steps=20 warmup_steps=4 | checkpoint: every_steps=0 keep=0"
    " | monitor: every_steps=5 validate_every_steps=10 sample_tokens=8 report=no",
    "gpt2": "model: init=gpt2 dropout=0.1 | checkpoint: every_steps=10",
    "llama": "model: norm=rmsnorm activation=swiglu position=rope bias=no tie_embeddings=no kv_heads=2 dim=48 ffn=80"
    " | schedule: decay=linear",
    "qwen": "model: norm=rmsnorm activation=swiglu position=rope bias=no qkv_bias=yes qk_norm=yes kv_heads=2 head_dim=12"
    " rope_scaling=llama3 rope_factor=4 rope_original_positions=16 | data: sequence_length=48 batch=7",
    "qwen2": "model: norm=rmsnorm activation=swiglu position=rope bias=no qkv_bias=yes kv_heads=2 layers=2 rope_scaling=linear"
    " rope_factor=2 | optimizer: clip_norm=0.5",
    "course": "model: preset=jsc dim=64 heads=4 ffn=96 layers=4 dropout=0.1 | data: sequence_length=32 stride=16"
    " | monitor: histogram_every_steps=10",
    "dropout": "model: dropout=0.1 attention_dropout=0.2 ffn_dropout=0.3 tie_embeddings=no layers=2",
    "recompute": "model: recompute=full dropout=0.1 attention_dropout=0.1 | data: micro_batch=2",
    "sgd": "optimizer: kind=sgd learning_rate=0.1 clip_norm=0 weight_decay=0.01 | schedule: decay=wsd decay_fraction=0.5 | data: batch=9"
    " | run: seed=7",
    "smooth": "optimizer: label_smoothing=0.1 | schedule: decay=constant | monitor: validate_windows=5 | model: vocabulary=1300"
    " scale_embedding=yes position=sinusoidal init=xavier layers=2",
    "documents": "data: file=bpe.h5 document_mask=yes sequence_length=24 | model: norm=rmsnorm position=rope rope_scaling=yarn"
    " rope_factor=3 rope_original_positions=8 activation=swiglu bias=no layers=2 | schedule: epochs=2 warmup_steps=2",
    "masked": "data: file=answers.h5 staging=none sequence_length=12 | model: layers=2 | schedule: epochs=2 warmup_steps=2",
    "mixture": "data: mixture=harbour.h5:0.7,other.h5:0.3 validation=a:harbour.h5,b:other.h5 | model: dropout=0.1 layers=2",
    "stream": "data: staging=stream read_ahead=1 stride=5 sequence_length=15 | checkpoint: async=yes every_steps=7 | model: layers=2",
    "translate": "data: file=numerals.h5 sequence_length=48 batch=64 batch_tokens=512 | model: kind=encoder_decoder encoder_layers=2 layers=2 dropout=0.1"
    " position=sinusoidal scale_embedding=yes init=xavier max_positions=48 | optimizer: label_smoothing=0.1 beta2=0.98"
    " | run: spike_window=0",
    "texts": "data: file=pair_pieces.h5 sequence_length=80 long_pairs=leave_out batch=16 | model: kind=encoder_decoder encoder_layers=1"
    " layers=2 norm_position=post activation=relu position=sinusoidal scale_embedding=yes max_positions=80",
}

# ---- The launches, stage by stage; those of a stage need the files of the stages before it. "name ranks arguments".
TOKENIZE = """
harbour      1 kind=harbour harbour_tokens=2000
other        1 kind=harbour harbour_tokens=1500 harbour_seed=2
numerals     1 kind=numerals numerals_pairs=2000
byte         1 kind=byte train=train.txt valid=valid.txt test=test.txt
word         1 kind=word lowercase=yes min_count=2 train=train.txt valid=valid.txt test=test.txt
bpe          2 kind=bpe tokenizer=tokenizer.json train=texts/* valid_fraction=0.1 test_fraction=0.1
lines        1 kind=bpe tokenizer=tokenizer.json document=line train=train.txt valid=valid.txt test=test.txt eos=<|endoftext|>
answers      1 kind=bpe tokenizer=tokenizer.json train=answers.jsonl prompt_key=ask valid_fraction=0.1 test_fraction=0.1
replaced     1 kind=bpe tokenizer=tokenizer.json train=broken.txt document=line invalid=replace valid_fraction=0.2 test_fraction=0.2
pieces       1 kind=sentencepiece vocabulary_size=290 train=train.txt valid=valid.txt test=test.txt document=blank_line
unigram      2 kind=sentencepiece vocabulary_size=290 model_type=unigram train=texts/* valid_fraction=0.1 test_fraction=0.1
pair_word    1 kind=word shared_vocabulary=no source=source.txt target=target.txt valid_fraction=0.1 test_fraction=0.1
pair_byte    1 kind=byte source=source.txt target=target.txt valid_fraction=0.1 test_fraction=0.1
pair_bpe     2 kind=bpe tokenizer=tokenizer.json source=source.txt target=target.txt valid_fraction=0.1 test_fraction=0.1
pair_pieces  1 kind=sentencepiece vocabulary_size=330 source=source.txt target=target.txt valid_fraction=0.1 test_fraction=0.1
"""
TRAIN = """
gpt2.serial         1
gpt2.fp64           1 run.precision=fp64
gpt2.data           2 grid.data=2
gpt2.zero1          2 grid.sharding=optimizer
gpt2.tensor         2 grid.tensor=2 grid.sequence_parallel=yes
gpt2.gpipe          2 grid.pipeline=2 pipeline.schedule=gpipe data.micro_batch=3
gpt2.context        2 grid.context=2
gpt2.canonical      1 run.canonical=4x2
gpt2.canonical2     2 run.canonical=4x2 grid.tensor=2 run.canonical_leaf=2
gpt2.canonical8     8 run.canonical=4x2 grid.tensor=2 grid.pipeline=2 grid.sharding=gradients run.canonical_leaf=1
gpt2.cube           8 grid.tensor=2 grid.pipeline=2 grid.data=2 data.micro_batch=1
gpt2.hybrid         8 grid.sharding=parameters grid.shard_group=2 grid.tensor=2 grid.sequence_parallel=yes
llama.serial        1
llama.fp64          1 run.precision=fp64
llama.tensor        2 grid.tensor=2
llama.zero3         2 grid.sharding=parameters
llama.interleaved   2 grid.pipeline=2 pipeline.schedule=interleaved pipeline.chunks=2 data.micro_batch=2
llama.ring          8 grid.context=2 grid.tensor=2 grid.sharding=gradients
llama.bubbles       8 grid.pipeline=4 pipeline.schedule=zero_bubble data.micro_batch=1
qwen.serial         1
qwen.canonical      1 run.canonical=2x1 run.precision=fp64
qwen.pipeline       2 grid.pipeline=2
qwen.data           2 grid.overlap=no grid.bucket_mib=0.01
qwen.parameters     8 grid.sharding=parameters grid.prefetch=2 grid.pipeline=2
qwen2.serial        1
course.serial       1
course.tensor       2 grid.tensor=2 grid.sequence_parallel=yes run.precision=fp64
course.zero2        2 grid.sharding=gradients
dropout.serial      1
dropout.context     2 grid.context=2
recompute.serial    1
recompute.part      1 model.recompute=selective
recompute.bubbles   2 grid.pipeline=2 pipeline.schedule=zero_bubble
recompute.interleaved 8 grid.pipeline=2 pipeline.schedule=interleaved pipeline.chunks=2 grid.tensor=2 grid.sharding=optimizer
sgd.serial          1
sgd.data            2 grid.sharding=gradients
smooth.serial       1 run.threads=2
smooth.tensor       2 grid.tensor=2
documents.serial    1
documents.context   2 grid.context=2
documents.tensor    2 grid.tensor=2 data.staging=node data.staging_path=.
masked.serial       1
mixture.serial      1
mixture.data        2 grid.sharding=parameters
stream.serial       1
stream.tensor       2 grid.tensor=2
translate.serial    1
translate.fp64      1 run.precision=fp64
translate.canonical 1 run.canonical=2x2
translate.data      2 grid.sharding=parameters
translate.cube      8 grid.pipeline=2 grid.tensor=2 grid.sequence_parallel=yes pipeline.schedule=zero_bubble model.recompute=full
texts.serial        1
"""
TRAIN_BF16 = """
gpt2.bf16           1 run.precision=bf16
llama.bf16          2 run.precision=bf16 grid.tensor=2
course.bf16         1 run.precision=bf16
translate.bf16      2 run.precision=bf16 grid.pipeline=2
"""
FOLLOW = """
half                1 -i gpt2.in job.output=half schedule.stop_at=7
eight               8 -i llama.in job.output=eight grid.tensor=2 grid.pipeline=2 schedule.stop_at=7
half_texts          1 -i texts.in job.output=half_texts schedule.stop_at=7
written             1 -r gpt2.serial job.task=generate generate.file=prompts.jsonl generate.output=written.jsonl generate.tokens=20
written2            2 -r gpt2.serial job.task=generate generate.file=prompts.jsonl generate.output=written2.jsonl grid.pipeline=2 generate.batch=2
written_fp64        1 -r llama.fp64 job.task=generate generate.tokens=24 generate.seed=3 generate.top_k=40 generate.top_p=0.9
written_bpe         1 -r documents.serial job.task=generate "generate.prompt=größer 東京" generate.tokens=12 generate.stop_at_eos=yes
translated          1 -r translate.serial job.task=generate "generate.prompt=<de> 342 117" generate.tokens=40 generate.beams=3
evaluated           1 -r gpt2.serial job.task=evaluate evaluate.baselines=yes evaluate.stride=4 evaluate.results=evaluated.json
evaluated2          2 -r llama.serial job.task=evaluate grid.tensor=2 evaluate.results=evaluated2.json
evaluated_documents 1 -r documents.serial job.task=evaluate evaluate.documents=losses.h5 evaluate.text=test.txt evaluate.results=documents.json evaluate.choices=questions.jsonl evaluate.output=chosen.jsonl
evaluated_pairs     1 -r translate.data grid.data=0 job.task=evaluate generate.beams=2 generate.tokens=24 evaluate.results=translations.json evaluate.output=translations.jsonl
exported_gpt2       1 -r gpt2.serial job.task=export hf.path=hf_gpt2
exported_llama      2 -r llama.serial job.task=export hf.path=hf_llama hf.dtype=bf16 hf.shard_bytes=30000
exported_qwen2      1 -r qwen2.serial job.task=export hf.path=hf_qwen2 hf.dtype=fp16
exported_documents  1 -r documents.serial job.task=export hf.path=hf_documents
exported_marian     1 -r texts.serial job.task=export hf.path=hf_texts
verified            2 -i qwen.in job.task=verify grid.tensor=2
"""
FOLLOW_LATER = """
resumed             1 -r half
resumed_elsewhere   2 -r eight grid.tensor=1 grid.pipeline=1 grid.data=0 job.output=elsewhere
resumed_pairs       2 -r half_texts grid.pipeline=2
started             1 -i gpt2.in job.output=started checkpoint.start_from=gpt2.data schedule.steps=3
imported_gpt2       1 -i gpt2.in job.task=import hf.path=hf_gpt2 job.output=imported_gpt2
imported_llama      2 -i llama.in job.task=import hf.path=hf_llama job.output=imported_llama
imported_qwen2      1 -i qwen2.in job.task=import hf.path=hf_qwen2 job.output=imported_qwen2
"""
FOLLOW_LAST = """
again_gpt2          1 -r imported_gpt2 job.task=export hf.path=hf_gpt2_again
again_llama         1 -r imported_llama job.task=export hf.path=hf_llama_again
tuned               1 -i llama.in job.output=tuned checkpoint.start_from=imported_llama schedule.steps=3
"""
# Texts: they take no files of others but token files. Without MPI: the program answers before it starts MPI.
SAY = """
help            1 --help
help_deck       1 --help-deck
help_section    1 --help-deck checkpoint
valid_gpt2      1 -i gpt2.in -v job.output=none
valid_texts     2 -i texts.in -v job.output=none
valid_tokenize  1 -i gpt2.in -v job.task=tokenize data.file=none.h5 tokenize.kind=word tokenize.train=train.txt tokenize.valid=valid.txt tokenize.test=test.txt
plan_8b         1 -i input/llama3_8b.in job.task=plan plan.machine=input/machines/jupiter.in plan.nodes=4 plan.simulate=6 plan.rows=4 job.output=plan_8b
plan_70b        1 -i input/llama3_70b.in job.task=plan plan.machine=input/machines/juwels_booster.in plan.nodes=32 plan.simulate=3 job.output=plan_70b
plan_own        1 -i input/llama3_8b.in job.task=plan plan.machine=input/machines/h100.in plan.nodes=2 grid.pipeline=4 data.batch=16 data.micro_batch=1 plan.simulate=0 job.output=plan_own plan.timeline=own.json.gz
plan_124m       1 -i input/gpt2_124m.in job.task=plan plan.machine=input/machines/a100_40.in plan.nodes=1 plan.simulate=4 job.output=plan_124m
plan_pairs      1 -i input/translation.in job.task=plan plan.machine=input/machines/h200.in plan.nodes=1 plan.simulate=2 job.output=plan_pairs
"""
REFUSE = """
no_words        1
no_deck         1 -i missing.in
no_section      1 --help-deck chekpoint
no_option       1 -i gpt2.in --resume run
typo            1 -i typo.in -n
typo_ranks      2 -i typo.in
key             1 -i gpt2.in model.heds=4 -n
value           1 -i gpt2.in data.batch=none
range           1 -i gpt2.in model.dropout=1
choice          1 -i gpt2.in grid.sharding=zero3
no_file         1 -i gpt2.in data.file=missing.h5
not_hdf5        1 -i gpt2.in data.file=train.txt
pairs           1 -i gpt2.in data.file=numerals.h5
windows         1 -i translate.in data.file=harbour.h5
fp8             1 -i gpt2.in run.precision=fp8
ranks           1 -i gpt2.in -v grid.ranks=3 grid.tensor=3
stages          1 -i gpt2.in -v grid.ranks=8 grid.pipeline=8
chunks          1 -i gpt2.in -v grid.ranks=2 grid.pipeline=2 pipeline.schedule=interleaved pipeline.chunks=2 data.micro_batch=3
grid            2 -i gpt2.in grid.data=3
ring            1 -i gpt2.in -v grid.ranks=4 grid.context=2 run.canonical=4x2
canonical       1 -i gpt2.in run.canonical=3x2
leaf            1 -i gpt2.in run.canonical_leaf=2
shard_group     1 -i gpt2.in -v grid.ranks=4 grid.sharding=parameters grid.shard_group=3
heads           1 -i gpt2.in model.heads=5
rope            1 -i llama.in model.rope_scaling=linear
staging         1 -i translate.in data.staging=stream
resume          1 -r nowhere
model           1 -i gpt2.in -r gpt2.serial job.task=evaluate model.heads=2
stride          1 -r gpt2.serial job.task=evaluate evaluate.stride=17
prompt          1 -r gpt2.serial job.task=generate generate.prompt=no_such_word
prompts         1 -r gpt2.serial job.task=generate generate.file=bad.jsonl
export          1 -r qwen.serial job.task=export hf.path=hf_qwen
import          1 -i gpt2.in job.task=import hf.path=texts job.output=none
no_text         1 -i gpt2.in job.task=tokenize data.file=none.h5 tokenize.kind=bpe tokenize.tokenizer=tokenizer.json tokenize.train=nothing-*
not_utf8        1 -i gpt2.in job.task=tokenize data.file=none.h5 tokenize.kind=bpe tokenize.tokenizer=tokenizer.json tokenize.train=broken.txt
machine         1 -i input/llama3_8b.in job.task=plan plan.machine=juptier
nodes           1 -i input/llama3_8b.in job.task=plan plan.machine=input/machines/leonardo.in plan.nodes=5000
too_small       1 -i input/llama3_70b.in job.task=plan plan.machine=input/machines/a100_40.in plan.nodes=1
"""
EMULATED = """
gpt2.gpu            1 run.device=cuda
llama.gpu_bf16      1 run.device=cuda run.precision=bf16
llama.gpu_slices    2 run.device=cuda grid.tensor=2 grid.sequence_parallel=yes
gpt2.gpu_shards     2 run.device=cuda run.precision=bf16 grid.sharding=parameters data.micro_batch=2
"""
BROKEN_DECK, BROKEN_KEY = "sgd", "optimizer.learning_rate=0.1001"

# ---- What is left out of the comparison, because it was measured or names the build, the host or the moment.
UNCOMPARED_FILES = re.compile(r"/tensorboard/|/log\.txt$|^(?:own\.json\.gz)$")
UNCOMPARED_MEMBERS = re.compile(
    r"seconds|_per_second|roof|memory|slowest|joules|watts|^(?:time|speed|energy|preflight|predicted|date|host|hosts|commit|version"
    r"|compiler|trireme|started|ended|used_bytes|program_bytes|others_bytes|text|ready|longest_waited|run\.json)$")  # run.json itself is compared
UNCOMPARED_EVENTS = {"straggler"}  # a rank that others kept waiting
UNCOMPARED_LINES = re.compile(r"^(?:roof|time|predict|energy|comm bubble|gathers|staged) |warning: .* slower than|^Trireme \d")
CHANGED_WORDS = [  # of the lines that are compared
    (re.compile(r"^( {4}.{7} .*?[\d.]e[-+]\d\d +[\d.]+) .*"), r"\1"),  # a step: from tokens/s on
    (re.compile(r"^(done +\d+ steps(?: \(\d+ in this session\))?, [\d,]+ tokens), .*"), r"\1"),
    (re.compile(r"(a rank: )program \d+ MiB(.*) = .*"), r"\1program\2"),
    (re.compile(r"(\d+ texts, \d+ tokens) in .*"), r"\1"),
    (re.compile(r"^( {8}\w+ +[\w-]+ +[\d.,]+ +\S+(?: [KMGT]?i?B)? +\S+(?: [KMGT]?i?B)?) +\d+\.\d{3} .*"), r"\1"),  # traffic
    (re.compile(r"^(\d+ checkpoints? of .*?): written.*"), r"\1"),
    (re.compile(r"^(replicas compared \d+ times?), .*"), r"\1"),
    (re.compile(r"(nats/token.*) [\d.]+ s$"), r"\1"),
    (re.compile(r"\d+\.\d+ s\b"), "TIME s"),
]


def arguments():
    parser = argparse.ArgumentParser(description="Compares what two builds of Trireme compute, write and say.")
    parser.add_argument("--quick", action="store_true", help="one and two ranks alone, and no emulated GPUs")
    parser.add_argument("--break", dest="broken", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("builds", nargs="+", metavar="OLD_BUILD NEW_BUILD [OLD_EMULATED NEW_EMULATED]")
    found = parser.parse_args()
    if len(found.builds) not in (2, 4):
        parser.error("two builds are compared, or two and two emulated ones")
    for build in found.builds:
        if not os.access(os.path.join(build, "trireme"), os.X_OK):
            parser.error(f"{build} holds no program trireme")
    return found


class Fault(Exception):
    """The script is at fault, or a launch fails in both builds: nothing was compared."""


# ---- Inputs

def write_inputs(folder):
    """The same files for both builds: decks, texts with letters of several alphabets, prompts."""
    chosen = random.Random(1)
    words = WORDS + ["naïve", "кит", "e\u0301", "🚢", "a\u00a0b", "x²"]

    def sentences(count, longest=12):
        return [" ".join(chosen.choices(words, k=chosen.randint(1, longest))) for _ in range(count)]

    def write(name, lines):
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    for name, keys in DECKS.items():
        sections = {}
        for part in f"{DECKS['common']} | {keys}".split(" | "):
            section, _, values = part.partition(": ")
            sections.setdefault(section, {}).update(value.split("=", 1) for value in values.split())
        if "mixture" in sections["data"]:
            del sections["data"]["file"]
        if "epochs" in sections["schedule"]:
            del sections["schedule"]["steps"]
        write(f"{name}.in", [f"# Deck {name}, for same_bits.py."] + [
            line for section, values in sections.items()
            for line in [f"[{section}]"] + [f"{key} = {value}" for key, value in values.items()]])
    write("typo.in", ["[model]", "dim = 32", "# a comment", "haeds = 4"])
    shutil.copytree(HERE.parent / "input", folder / "input")
    for name, count in (("train", 300), ("valid", 40), ("test", 30)):
        lines = sentences(count)
        write(f"{name}.txt", [line if i % 5 else "" for i, line in enumerate(lines, 1)])
    lines = sentences(300, 8)
    write("source.txt", lines)
    write("target.txt", [line.upper()[::-1] for line in lines])
    (folder / "texts").mkdir()
    write("texts/one.jsonl", [json.dumps({"text": line}, ensure_ascii=False) for line in sentences(60)])
    write("texts/two.txt", sentences(30))
    packed = "".join(json.dumps({"text": line, "n": 1}) + "\n" for line in sentences(60))
    (folder / "texts/three.jsonl.gz").write_bytes(gzip.compress(packed.encode(), mtime=0))
    write("answers.jsonl", [json.dumps({"ask": line + "?", "text": line[::-1]}) for line in sentences(80, 4)])
    (folder / "broken.txt").write_bytes("".join(line + "\n" for line in sentences(20)).encode() + b"fine \xff \xc3 fine\n")
    (folder / "tokenizer.json").write_text(json.dumps(small_bpe("<|endoftext|>")), encoding="utf-8")
    write("prompts.jsonl", ['{"prompt": "the ship", "id": 7}', '{"prompt": "", "tokens": 5, "id": "empty"}',
                            '{"prompt": "the captain of the", "temperature": 0}', '{"prompt": "the", "seed": 3, "tokens": 30}',
                            '{"prompt": "the harbour", "repetition_penalty": 1.3, "top_k": 9, "top_p": 0.9}'])
    write("bad.jsonl", ['{"prompt": "the"}', '{"prompt": "the", "temprature": 1}'])
    write("questions.jsonl", ['{"context": "the ship sails", "choices": [" north", " in", " one two"], "answer": 0}',
                              '{"context": "one two and ", "choices": ["größer", "東京"], "answer": 1, "id": 3}'])


# ---- Launches

class Launch:
    def __init__(self, line, code=0, prefix=""):
        name, ranks, *words = shlex.split(line)
        self.name, self.ranks, self.words, self.code = prefix + name, int(ranks), words, code
        self.emulated, self.source = False, None  # source: the run that it goes on with
        if "-r" in words:
            self.source = words[words.index("-r") + 1]


def launches(table, **more):
    return [Launch(line, **more) for line in table.strip().split("\n")]


def trainings(table):
    made = launches(table)
    for launch in made:
        launch.words[:0] = ["-i", launch.name.split(".")[0] + ".in", "job.output=" + launch.name]
    return made


def tokenizations():
    made = launches(TOKENIZE)
    for launch in made:
        launch.words = ["-i", "gpt2.in", "job.task=tokenize", f"data.file={launch.name}.h5"] + [
            "tokenize." + word for word in launch.words]
        launch.name = "tokenize_" + launch.name
    return made


def resolved_decks(folder):
    """-n for each deck, and -v for each layout that a deck of input/ states in its comments: "# 64 GPUs: key=value ...". """
    for deck in sorted([*folder.glob("input/*.in"), *folder.glob("*.in")]):
        if deck.stem in ("typo", "common"):
            continue
        path = deck.relative_to(folder)
        yield Launch(f"n_{deck.stem} 1 -i {path} -n")
        for ranks, keys in re.findall(r"^# +(\d+) GPUs: (.*)", deck.read_text(encoding="utf-8"), re.M):
            yield Launch(f"v_{deck.stem}_{ranks} 1 -i {path} -v run.device=cpu run.precision=fp32 grid.ranks={ranks} {keys}")


def has_bf16():
    """Whether the CPU multiplies bfloat16, as src/device/stream.cpp asks it."""
    flags = set(re.findall(r"\S+", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")))
    return bool(flags & {"avx512_bf16", "amx_bf16"})


def stages(options, folder):
    emulated = trainings(EMULATED) if len(options.builds) == 4 and not options.quick else []
    for launch in emulated:
        launch.emulated = True
    planned = [
        tokenizations() + list(resolved_decks(folder)),
        trainings(TRAIN + (TRAIN_BF16.lstrip() if has_bf16() else "")) + emulated + launches(SAY),
        launches(FOLLOW) + launches(REFUSE, code=2, prefix="refuse_"),
        launches(FOLLOW_LATER),
        launches(FOLLOW_LAST),
    ]
    if options.quick:
        left_out = {launch.name for stage in planned for launch in stage if launch.ranks > 2}
        planned = [[launch for launch in stage if launch.name not in left_out and launch.source not in left_out] for stage in planned]
    return planned


class Seats:
    """Launches that run at once. A launch of one rank waits half of its time, for MPI to start and end."""

    def __init__(self, count):
        self.count, self.free, self.changed = count, count, threading.Condition()

    def run(self, launch, task):
        wanted = min(launch.ranks, self.count)
        with self.changed:
            self.changed.wait_for(lambda: self.free >= wanted)
            self.free -= wanted
        try:
            return task()
        finally:
            with self.changed:
                self.free += wanted
                self.changed.notify_all()


class Side:
    """One of the two: its programs, and the folder in which they work."""

    def __init__(self, name, scratch, builds, extra):
        self.folder, self.builds, self.extra = scratch / name, [pathlib.Path(build).resolve() for build in builds], extra
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(("TRIREME_", "OMP_"))}
        self.environment.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", LC_ALL="C.UTF-8", OMPI_MCA_mpi_yield_when_idle="1",
                                OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                TRIREME_EMULATOR_DEVICES="8")

    def source_of(self, build):
        """The source folder of a build, which some messages name."""
        cache = build / "CMakeCache.txt"
        found = re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)", cache.read_text(), re.M) if cache.exists() else None
        return found[1] if found else str(build.parent)

    def run(self, launch):
        build = self.builds[launch.emulated]
        words = [str(build / "trireme"), *launch.words]
        if launch.name.startswith(BROKEN_DECK + "."):
            words += self.extra
        if launch.ranks > 1:
            words = ["bash", str(HERE / "mpirun.sh"), os.environ.get("TRIREME_MPIRUN", "mpirun"), "-n", str(launch.ranks), *words]
        cache = self.folder.parent / "cache" / (launch.name if launch.emulated else "all")
        done = subprocess.run(words, cwd=self.folder, env=self.environment | {"XDG_CACHE_HOME": str(cache)},
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
        text = f"{done.stdout.decode(errors='backslashreplace')}\n== standard error ==\n{done.stderr.decode(errors='backslashreplace')}"
        # Names of folders, and what the launcher says about ranks that ended with an error.
        for name, path in (("FOLDER", self.folder), ("BUILD", build), ("SOURCE", self.source_of(build))):
            text = text.replace(str(path), name)
        text = re.sub(r"-{60,}\n(?:Primary job|mpirun detected).*?-{60,}\n", "", text, flags=re.S)
        (self.folder / f"said_{launch.name}.out").write_text(text, encoding="utf-8")
        return done.returncode


def run_stage(stage, sides, seats, failed):
    """Runs a stage with both builds; `failed` takes launches of one build that did not end with the expected code."""
    with concurrent.futures.ThreadPoolExecutor(2 * seats.count) as pool:
        ranked = sorted(stage, key=lambda launch: -launch.ranks)
        def in_turn(launch):
            return [seats.run(launch, lambda s=side: s.run(launch)) for side in sides]
        def both(launch):
            """The jobs of one launch, each of which gives the exit codes of some sides."""
            if launch.emulated:  # the new build takes the algorithms of products that the old one chose by their times
                return [pool.submit(in_turn, launch)]
            return [pool.submit(lambda s=side: [seats.run(launch, lambda: s.run(launch))]) for side in sides]
        jobs = [(launch, both(launch)) for launch in ranked]
        faults = []
        for launch, running in jobs:
            try:
                codes = [code for job in running for code in job.result()]
            except subprocess.TimeoutExpired as late:
                raise Fault(f"{launch.name} takes longer than {late.timeout:.0f} s") from late
            right = [code == launch.code for code in codes]
            if not any(right):
                said = (sides[0].folder / f"said_{launch.name}.out").read_text(encoding="utf-8")
                faults.append(f"{launch.name} ({' '.join(launch.words)}) ends with code {codes[0]} and {codes[1]} instead of"
                              f" {launch.code}:\n" + "\n".join(said.strip().split("\n")[-25:]))
            elif not all(right):
                failed.append(f"said_{launch.name}.out: exit code {codes[0]} and {codes[1]}, expected {launch.code}")
        if faults:
            raise Fault("\n".join(faults))


# ---- Comparison. Each function returns where two files differ first, or None.

def shown(value):
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) < 160 else text[:157] + "..."


def compare_bytes(old, new):
    a, b = old.read_bytes(), new.read_bytes()
    if a == b:
        return None
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return f"byte {at} of {len(a)} and {len(b)}"


def tensors(data):
    size = struct.unpack("<Q", data[:8])[0]
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            yield name, (entry["dtype"], entry["shape"]), data[8 + size + begin:8 + size + end]


def compare_safetensors(old, new):
    a, b = old.read_bytes(), new.read_bytes()
    if a == b:
        return None
    types = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8"}
    for (name, kind, x), (other, other_kind, y) in zip(tensors(a), tensors(b)):
        if (name, kind) != (other, other_kind):
            return f"tensor {name} {kind} and {other} {other_kind}"
        if x != y:
            x, y = (numpy.frombuffer(each, types.get(kind[0], "u1")) for each in (x, y))
            apart = numpy.flatnonzero(x.view(f"u{x.itemsize}") != y.view(f"u{y.itemsize}"))
            return f"tensor {name}: {apart.size} of {x.size} elements, first [{apart[0]}]: {x[apart[0]]!r} and {y[apart[0]]!r}"
    return "the header, " + compare_bytes(old, new)


def compare_hdf5(old, new):
    where = compare_bytes(old, new)
    if where is None:
        return None
    with h5py.File(old, "r") as a, h5py.File(new, "r") as b:
        found = [{}, {}]
        for file, items in zip((a, b), found):
            items.update({f"attribute {key}": value for key, value in file.attrs.items()})
            file.visititems(lambda name, item, items=items: items.update(
                {name: item[()]} if isinstance(item, h5py.Dataset) else {}))
        for name in [*found[0], *found[1]]:
            if name not in found[0] or name not in found[1]:
                return f"{name} is only in one"
            x, y = (numpy.asarray(items[name]) for items in found)
            if x.dtype != y.dtype or x.shape != y.shape:
                return f"{name}: {x.dtype}{list(x.shape)} and {y.dtype}{list(y.shape)}"
            if x.tobytes() != y.tobytes():
                at = numpy.flatnonzero(x.ravel() != y.ravel())
                return f"{name}: first [{at[0]}]: {x.ravel()[at[0]]!r} and {y.ravel()[at[0]]!r}" if at.size else name
    return "the same datasets and attributes, other bytes: " + where


def compared(value):
    """A JSON value without the members that are not compared."""
    if isinstance(value, dict):
        return {key: compared(item) for key, item in value.items() if not UNCOMPARED_MEMBERS.search(key)}
    return [compared(item) for item in value] if isinstance(value, list) else value


def json_difference(a, b, path=""):
    if isinstance(a, dict) and isinstance(b, dict):
        if list(a) != list(b):
            return f"{path or 'members'}: {shown(list(a))} and {shown(list(b))}"
        pairs = [(f"{path}.{key}", a[key], b[key]) for key in a]
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = [(f"{path}[{i}]", x, y) for i, (x, y) in enumerate(zip(a, b))]
    else:
        return None if repr(a) == repr(b) else f"{path.lstrip('.')}: {shown(a)} and {shown(b)}"
    return next((found for place, x, y in pairs if (found := json_difference(x, y, place))), None)


def compare_json(old, new):
    return json_difference(*(compared(json.loads(path.read_bytes())) for path in (old, new)))


def compare_records(old, new):
    a, b = ([compared(record) for record in map(json.loads, path.read_text(encoding="utf-8").splitlines())
             if record.get("event") not in UNCOMPARED_EVENTS] for path in (old, new))
    # A checkpoint that is written beside the steps is recorded when it is done.
    a, b = (sorted(records, key=lambda record: record.get("event") == "checkpoint") for records in (a, b))
    for i, (x, y) in enumerate(zip(a, b), 1):
        if found := json_difference(x, y):
            return f"line {i}" + (f", {x.get('kind')} at step {x.get('step')}" if "step" in x else "") + f": {found}"
    return None if len(a) == len(b) else f"{len(a)} and {len(b)} lines"


def compared_lines(path):
    for line in path.read_text(encoding="utf-8").split("\n"):
        if not UNCOMPARED_LINES.search(line):
            for pattern, words in CHANGED_WORDS:
                line = pattern.sub(words, line)
            yield line


def compare_text(old, new):
    a, b = list(compared_lines(old)), list(compared_lines(new))
    for i, (x, y) in enumerate(zip(a, b), 1):
        if x != y:
            return f"line {i}: {shown(x)} and {shown(y)}"
    return None if len(a) == len(b) else f"{len(a)} and {len(b)} lines"


COMPARISONS = {".safetensors": compare_safetensors, ".h5": compare_hdf5, ".jsonl": compare_records, ".json": compare_json,
               ".out": compare_text}


def compare(old, new):
    """Returns the number of compared items and a line for each that differs."""
    given = {path for path in map(pathlib.Path, (old / "given.txt").read_text().splitlines())}
    names = [{path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()} for folder in (old, new)]
    items, lines = 0, []
    for name in sorted(names[0] | names[1]):
        if name in given or UNCOMPARED_FILES.search(str(name)):
            continue
        items += 1
        if name not in names[0] or name not in names[1]:
            lines.append(f"{name}: only the {'old' if name in names[0] else 'new'} build makes it")
        elif (old / name).is_symlink():
            if os.readlink(old / name) != os.readlink(new / name):
                lines.append(f"{name}: a link to {os.readlink(old / name)} and {os.readlink(new / name)}")
        elif where := COMPARISONS.get(name.suffix, compare_bytes)(old / name, new / name):
            lines.append(f"{name}: {where}")
    return items, lines


def check_work(planned, sides):
    """Every training left weights and a loss that is a number: an empty comparison is no comparison."""
    for launch in (launch for stage in planned for launch in stage if launch.code == 0):
        output = next((word.split("=")[1] for word in launch.words if word.startswith("job.output=")), "none")
        if output == "none" or any(word.startswith(("job.task=plan", "-v")) for word in launch.words):
            continue
        for side in sides:
            run = side.folder / output
            if not (run / "checkpoints/latest/model.safetensors").exists():
                raise Fault(f"{launch.name} left no weights in {run}")


def main():
    options = arguments()
    begin = time.monotonic()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="same_bits."))
    sides = [Side(name, scratch, options.builds[i::2], [BROKEN_KEY] if options.broken and i else [])
             for i, name in enumerate(("old", "new"))]
    lines = []
    try:
        sides[0].folder.mkdir()
        write_inputs(sides[0].folder)
        given = [str(path.relative_to(sides[0].folder)) for path in sides[0].folder.rglob("*")] + ["given.txt"]
        (sides[0].folder / "given.txt").write_text("\n".join(given))
        shutil.copytree(sides[0].folder, sides[1].folder)
        planned, seats = stages(options, sides[0].folder), Seats(4)
        for stage in planned:
            run_stage(stage, sides, seats, lines)
        check_work(planned, sides)
        items, found = compare(sides[0].folder, sides[1].folder)
        lines += found
    except Fault as fault:
        print(f"same_bits.sh: {fault}\nThe folder {scratch} is kept.", file=sys.stderr)
        return 2
    for line in lines:
        print(line)
    without = [] if has_bf16() else ["no bf16 on this CPU"]
    without += [] if len(options.builds) == 4 and not options.quick else ["no emulated GPUs"]
    print(f"same bits: {items} items, {len(lines)} differ, {time.monotonic() - begin:.0f} s" + (f" ({', '.join(without)})" if without else ""))
    if lines:
        print(f"What both builds wrote is in {scratch}.")
        return 1
    shutil.rmtree(scratch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
