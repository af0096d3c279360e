"""A new user's path: a Llama-shaped folder with its tokenizer is imported, trained further on four
ranks, evaluated, exported, and writes the same text in transformers as in Trireme."""

import pathlib
import subprocess
import sys

import tokenizers
import torch
import transformers
from tokenizers import decoders, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import record
import runs

NAME = "user_path"
EOS = "<|endoftext|>"
PROMPTS = ("The rate of a step", "Each rank holds", "A checkpoint")
TOKENS = 32
LENGTH = 96
STEPS = 150
LEARNED = 5.0  # nats/token, well below the start at ln(520)
FIVE_LINES = """
import sys; from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer, model = (kind.from_pretrained(sys.argv[1]) for kind in (AutoTokenizer, AutoModelForCausalLM))
ids = tokenizer(sys.argv[2], return_tensors="pt").input_ids
out = model.generate(ids, max_new_tokens=int(sys.argv[3]), do_sample=False)
print(tokenizer.decode(out[0]))
"""


def make_tokenizer(texts):
    """A byte-level BPE of 500 tokens, as GPT-2's."""
    fast = tokenizers.Tokenizer(tokenizers.models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.train([str(text) for text in texts],
               trainers.BpeTrainer(vocab_size=500, special_tokens=[EOS], show_progress=False,
                                   initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return PreTrainedTokenizerFast(tokenizer_object=fast, eos_token=EOS)


def make_folder(folder, texts):
    """A model with more rows in its tables than its tokenizer has tokens, in bfloat16, in two files or more."""
    torch.manual_seed(2)
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(
        vocab_size=520, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=0,
        rope_parameters=record.rope("llama3", original_max_position_embeddings=64, low_freq_factor=1.0,
                                    high_freq_factor=4.0)))
    model.to(torch.float32).save_pretrained(folder, max_shard_size="200KB")
    make_tokenizer(texts).save_pretrained(folder)


def write_deck(path, scratch, texts):
    path.write_text(
        "# Documents of Trireme, read by a small Llama.\n"
        + runs.section("data", {"file": scratch / "documents.h5", "sequence_length": LENGTH, "batch": 16})
        + runs.section("tokenize", {"kind": "bpe", "tokenizer": scratch / "llama", "train": texts, "valid_fraction": 0.1,
                                    "test_fraction": 0.1})
        + runs.section("optimizer", {"learning_rate": 4e-3})
        + runs.section("schedule", {"steps": STEPS, "warmup_steps": 10})
        + runs.section("monitor", {"sample_tokens": 0}))


def same_ids(table, first, second, texts):
    """Ids of a tokenizer before and after, of all the texts."""
    before, after = AutoTokenizer.from_pretrained(first), AutoTokenizer.from_pretrained(second)
    contents = [text.read_text() for text in texts]
    table.equal(NAME, "ids of the exported tokenizer", [before(text).input_ids for text in contents],
                [after(text).input_ids for text in contents])


def walk(trireme, table, scratch):
    root = pathlib.Path(__file__).parents[2]
    texts = sorted((root / "doc").glob("*.md"))
    source, run, exported, deck = (scratch / name for name in ("llama", "user_run", "user_exported", "user.in"))
    make_folder(source, texts)
    write_deck(deck, scratch, root / "doc/*.md")
    trireme("-i", deck, "job.task=tokenize")
    trireme("-i", deck, "job.task=import", f"hf.path={source}", f"job.output={run}")
    trireme("-r", run, "grid.data=2", "grid.tensor=2", ranks=4)
    loss = runs.trained(run)["valid_after"]
    table.within(NAME, f"validation loss after {STEPS} steps on 2x2", loss, LEARNED)
    table.within(NAME, "evaluate against the end of training", runs.relative([loss], [runs.evaluated(trireme, run, scratch, 4)["valid"]]), 1e-5)
    trireme("-r", run, "job.task=export", f"hf.path={exported}", ranks=4)
    same_ids(table, source, exported, texts)
    # As Trireme starts by default, after an <eos>, and as a tokenizer without a template starts.
    for prompt, start, shown in [(prompt, *how) for prompt in PROMPTS for how in ((EOS, "yes"), ("", "no"))]:
        ended = subprocess.run([sys.executable, "-c", FIVE_LINES, str(exported), start + prompt, str(TOKENS)], check=True,
                               capture_output=True, text=True)
        ours = trireme("-r", run, "job.task=generate", f"generate.prompt={prompt}", "generate.temperature=0",
                       f"generate.start_with_eos={shown}", f"generate.tokens={TOKENS}", ranks=4)
        # transformers stops at the end of a document.
        theirs = ended.stdout.removeprefix(EOS).strip()
        table.equal(NAME, f"greedy text after {start + prompt!r}", *(text.strip().split(EOS)[0] for text in (theirs, ours)))
