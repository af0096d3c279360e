"""tokenizers_parity.py ENCODE_TEXTS: ids of byte-level BPE against Hugging Face's `tokenizers`, on
vocabularies in GPT-2's, Llama 3's and Qwen2's shape that it trains here, and on hard texts. Code 77:
skipped, saying why."""

import json
import pathlib
import random
import sys
import tempfile

from texts import hard_texts, ours, training_text

try:
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
    from tokenizers import decoders, processors
except ImportError:
    print("SKIPPED: the Python package tokenizers is not there")
    sys.exit(77)

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def splits(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def shapes():
    """Tokenizers to train: name, normalizer, pre-tokenizer, special tokens."""
    end = [AddedToken("<|endoftext|>", special=True)]
    yield "gpt2", None, pre_tokenizers.ByteLevel(add_prefix_space=False), end
    yield "prefixed", None, pre_tokenizers.ByteLevel(add_prefix_space=True), end
    yield "llama3", None, splits(LLAMA3), [AddedToken("<|begin_of_text|>", special=True),
                                           AddedToken("<|end_of_text|>", special=True)]
    yield "qwen2", normalizers.NFC(), splits(QWEN2), end + [
        AddedToken("<|im_start|>", special=True, normalized=False),
        AddedToken("<tool>", special=False, normalized=True, lstrip=True, rstrip=True)]
    # White space that takes the white space around it.
    yield "blanks", None, pre_tokenizers.ByteLevel(add_prefix_space=False), end + [
        AddedToken(content, special=False, normalized=False, lstrip=True, rstrip=True) for content in ("  ", "\n")]
    yield "digits", None, pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]), end
    yield "inverted", None, pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(GPT2), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), end


def train(normalizer, pre_tokenizer, special, text):
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def main():
    random.seed(4)
    text = training_text()
    texts = list(hard_texts(text))
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, normalizer, pre_tokenizer, special in shapes():
            for ignore_merges in (False, True):
                tokenizer = train(normalizer, pre_tokenizer, special, text)
                settings = json.loads(tokenizer.to_str())
                settings["model"]["ignore_merges"] = ignore_merges
                path = pathlib.Path(folder) / f"{name}_{ignore_merges}.json"
                path.write_text(json.dumps(settings), encoding="utf-8")
                theirs = Tokenizer.from_file(str(path))
                for given, (ids, digits) in zip(texts, ours(sys.argv[1], path, texts), strict=True):
                    expected = theirs.encode(given, add_special_tokens=False).ids
                    if ids != expected:
                        failures += 1
                        if failures <= 10:
                            print(f"{path.name}: {given[:80]!a}: {ids[:20]}, theirs {expected[:20]}")
                    if name in ("gpt2", "llama3") and bytes.fromhex(digits).decode() != given:
                        failures += 1
                        print(f"{path.name}: {given[:80]!a} decodes to another text")
    print(f"{len(texts)} texts, 14 tokenizers: {failures} differ")
    sys.exit(1 if failures else 0)


main()
