"""Models that leave for transformers. Models that translate, exported as Marian: losses, log-probabilities of whole texts, greedy
translations. A new user's path: a Llama-shaped folder with its tokenizer is imported, trained further on four ranks, evaluated,
exported, and writes the same text in transformers as in Trireme."""

import json
import pathlib
import subprocess
import sys

import tokenizers
import torch
import transformers
from tokenizers import decoders, pre_tokenizers, trainers
from transformers import AutoTokenizer, MarianMTModel, PreTrainedTokenizerFast

import models
import pairs
import record
import runs
from torch_pairs import IGNORED, padded

MARIAN = "marian"
CASE = "pairs_post"  # norms after the sub-layers, sinusoids, one table
ROUNDED = 1e-5  # fp32
MOST_TOKENS = 12
# Models by name: keys beside those of the case.
CHANGED = {"relu, tied, scaled": [], "gelu, a head of its own": ["model.activation=gelu", "model.tie_embeddings=no", "model.scale_embedding=no"]}


def loss_of(model, split):
    """Mean over the targets, texts padded with eos and masked."""
    texts = pairs.texts(CASE, split)
    sources, inputs = padded([source for source, _ in texts], pairs.EOS), padded([[pairs.EOS, *target[:-1]] for _, target in texts], pairs.EOS)
    mask = padded([[1] * len(source) for source, _ in texts], 0)
    targets = padded([target for _, target in texts], IGNORED)
    with torch.no_grad():
        logits = model(input_ids=sources, attention_mask=mask, decoder_input_ids=inputs).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED).item()


def translations(model, split):
    """Words that each source gets, token by token the likeliest."""
    found = []
    for source, _ in pairs.texts(CASE, split):
        ids = model.generate(torch.tensor([list(map(int, source))]), num_beams=1, do_sample=False, max_new_tokens=MOST_TOKENS)[0, 1:].tolist()
        found.append(" ".join(models.word(i) for i in (ids[:ids.index(pairs.EOS)] if pairs.EOS in ids else ids)))
    return found


def as_marian(trireme, table, scratch):
    for number, (what, keys) in enumerate(CHANGED.items()):
        folder = scratch / f"marian{number}"
        folder.mkdir()
        file, deck, run, exported = folder / "pairs.h5", folder / "deck.in", folder / "run", folder / "exported"
        pairs.write_pairs(file, CASE)
        pairs.write_deck(deck, file, CASE)
        trireme("-i", deck, "schedule.steps=40", f"job.output={run}", "run.precision=fp32", "optimizer.learning_rate=1e-2", *keys)
        trireme("-r", run, "job.task=export", f"hf.path={exported}")
        trireme("-r", run, "job.task=export", f"hf.path={folder / 'of_four'}", ranks=4)
        same = (exported / "model.safetensors").read_bytes() == (folder / "of_four/model.safetensors").read_bytes()
        table.equal(MARIAN, f"{what}: the same weights from 4 ranks", True, same)
        model, notes = MarianMTModel.from_pretrained(exported, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        model.eval()
        table.equal(MARIAN, f"{what}: weights missing or unexpected", ([], []),
                    (sorted(n for n in notes["missing_keys"] if "embed_positions" not in n and n != "final_logits_bias"), sorted(notes["unexpected_keys"])))
        ours = runs.evaluated(trireme, run, folder)
        for split in ("valid", "test"):
            table.within(MARIAN, f"{what}: loss of the {split} split", runs.relative([ours[split]], [loss_of(model, split)]), ROUNDED)
        prompts, texts = folder / "prompts.jsonl", folder / "texts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": " ".join(models.word(i) for i in source[:-1])}) + "\n" for source, _ in pairs.texts(CASE, "test")))
        trireme("-r", run, "job.task=generate", f"generate.file={prompts}", f"generate.output={texts}", f"generate.tokens={MOST_TOKENS}")
        table.equal(MARIAN, f"{what}: greedy translations", translations(model, "test"),
                    [json.loads(line)["text"].strip() for line in texts.read_text().splitlines()])
        # Saved by transformers and read again: tables of positions are computed anew.
        model.save_pretrained(folder / "again")
        again = MarianMTModel.from_pretrained(folder / "again", dtype=torch.float32, attn_implementation="eager").eval()
        table.within(MARIAN, f"{what}: loss after transformers saved it", runs.relative([loss_of(model, "test")], [loss_of(again, "test")]), 0)


USER_PATH = "user_path"
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
    table.equal(USER_PATH, "ids of the exported tokenizer", [before(text).input_ids for text in contents],
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
    table.within(USER_PATH, f"validation loss after {STEPS} steps on 2x2", loss, LEARNED)
    table.within(USER_PATH, "evaluate against the end of training", runs.relative([loss], [runs.evaluated(trireme, run, scratch, 4)["valid"]]), 1e-5)
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
        table.equal(USER_PATH, f"greedy text after {start + prompt!r}", *(text.strip().split(EOS)[0] for text in (theirs, ours)))
