"""tokenizers_parity.py ENCODE_TEXTS: ids of byte-level BPE against Hugging Face's `tokenizers`, on
vocabularies in GPT-2's, Llama 3's and Qwen2's shape that it trains here, and on hard texts. Code 77:
skipped, saying why."""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

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
OTHER = "Größe ÄÖÜ naïve 東京 数据 नमस्ते 안녕 😀👩‍👩‍👧 שלום "


def training_text():
    """Half a megabyte of WikiText-2 where it is, else a text of its words' shape."""
    path = pathlib.Path(os.environ.get("TRIREME_SHARED", "")) / "data/wikitext-2/train.txt"
    if path.is_file():
        with open(path, encoding="utf-8") as file:
            return file.read(400_000) + OTHER * 20
    print("WikiText-2 is not in TRIREME_SHARED: vocabularies of random words")
    words = ["".join(random.choices("etaoinshrdlu", k=random.randint(1, 9))) for _ in range(3000)]
    return " ".join(random.choices(words, k=60_000)) + OTHER * 20


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


def hard_texts(text):
    yield from ["", " ", "\n", "\r\n", "\t\t\n \r\n  x", "it's IT'S they'Re 'ſ I'LL we''ve",
                "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈", "東京都に行く。今天天气很好！", "e\u0301 \u0041\u030a \u1e69 s\u0323\u0307 \u212b \ufb01",
                "\u1100\u1161\u11a8 가각", "1234567 12 3.14 ²³ Ⅷ ①", "a\u00a0b\u2003c\u200bd\u180ee\u0085f\u3000g\u2028h",
                "<|endoftext|>", "a<|endoftext|> b <|im_start|><|im_start|>", "x  <tool>  y <tool", " 　<tool>　z",
                "<|begin_of_text|>ab<|end_of_text|>", "\u0000\u0001\u007f\ufffd\U0010ffff", "\ufeffbom",
                " " * 10000, " " * 10000 + "x", "x" * 10000, "\n" * 5000, "é" * 10000, "9" * 10000, "!" * 10000,
                "ab " * 4000, "कि" * 300, "q\u07fd\u0327", "q\u0301\u0327"]
    random.seed(5)
    alphabet = ["'", "s", "S", " ", " ", "\n", "\r", "\t", "1", "é", "e\u0301", "東", "😀", "\u200d", "a", "B", ".", "<",
                "|", ">", "\u0327", "\u00a0", "ß", "endoftext", "<tool>", "<|endoftext|>"]
    for _ in range(400):
        yield "".join(random.choices(alphabet, k=random.randint(1, 60)))
    for _ in range(200):
        yield "".join(chr(c) for c in (random.randrange(0x20, 0x3000 if random.random() < 0.7 else 0x1fb00) for _ in range(40))
                      if not 0xd800 <= c < 0xe000)
    for _ in range(100):
        start = random.randrange(len(text) - 3000)
        yield text[start:start + random.randint(1, 3000)]


def ours(program, path, texts):
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    result = subprocess.run([program, str(path)], input=lines, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{program} {path}: {result.stderr}")
    return [json.loads(line) for line in result.stdout.splitlines()]


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
    print(f"{len(texts)} texts, 12 tokenizers: {failures} differ")
    sys.exit(1 if failures else 0)


main()
