"""Models that translate, exported as Marian and read by transformers: losses, log-probabilities of whole texts, greedy translations."""

import json

import torch
from transformers import MarianMTModel

import models
import pairs
import runs
from torch_pairs import IGNORED, padded

NAME = "marian"
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


def compare(trireme, table, scratch):
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
        table.equal(NAME, f"{what}: the same weights from 4 ranks", True, same)
        model, notes = MarianMTModel.from_pretrained(exported, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        model.eval()
        table.equal(NAME, f"{what}: weights missing or unexpected", ([], []),
                    (sorted(n for n in notes["missing_keys"] if "embed_positions" not in n and n != "final_logits_bias"), sorted(notes["unexpected_keys"])))
        ours = runs.evaluated(trireme, run, folder)
        for split in ("valid", "test"):
            table.within(NAME, f"{what}: loss of the {split} split", runs.relative([ours[split]], [loss_of(model, split)]), ROUNDED)
        prompts, texts = folder / "prompts.jsonl", folder / "texts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": " ".join(models.word(i) for i in source[:-1])}) + "\n" for source, _ in pairs.texts(CASE, "test")))
        trireme("-r", run, "job.task=generate", f"generate.file={prompts}", f"generate.output={texts}", f"generate.tokens={MOST_TOKENS}")
        table.equal(NAME, f"{what}: greedy translations", translations(model, "test"),
                    [json.loads(line)["text"].strip() for line in texts.read_text().splitlines()])
        # Saved by transformers and read again: tables of positions are computed anew.
        model.save_pretrained(folder / "again")
        again = MarianMTModel.from_pretrained(folder / "again", dtype=torch.float32, attn_implementation="eager").eval()
        table.within(NAME, f"{what}: loss after transformers saved it", runs.relative([loss_of(model, "test")], [loss_of(again, "test")]), 0)
