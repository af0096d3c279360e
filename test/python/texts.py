"""Texts on which tokenizers are compared, and the ids of ours; byte-level BPE by hand: the characters that stand for bytes, a
tokenizer of a few merges, and words for it."""

import json
import os
import pathlib
import random
import subprocess
import sys

OTHER = "Größe ÄÖÜ naïve 東京 数据 नमस्ते 안녕 😀👩‍👩‍👧 שלום "


def training_text():
    """Half a megabyte of WikiText-2 where it is, else a text of its words' shape."""
    path = pathlib.Path(os.environ.get("TRIREME_SHARED", "")) / "data/wikitext-2/train.txt"
    if path.is_file():
        with open(path, encoding="utf-8") as file:
            return file.read(400_000) + OTHER * 20
    print("WikiText-2 is not in TRIREME_SHARED: vocabularies of random words")
    words = ["".join(random.choices("etaoinshrdlu", k=random.randint(1, 9))) for _ in range(3000)]
    # In lines: sentencepiece leaves out sentences of more than 4,192 bytes.
    return "\n".join(" ".join(random.choices(words, k=20)) for _ in range(3000)) + "\n" + OTHER * 20


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


def ours(program, path, texts, pieces=None):
    """Lists of ids and hexadecimal digits; pieces: bytes of the pieces in which texts come."""
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    result = subprocess.run([program, str(path), *([str(pieces)] if pieces else [])], input=lines, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{program} {path}: {result.stderr}")
    return [json.loads(line) for line in result.stdout.splitlines()]


def byte_alphabet():
    """The character of each byte in GPT-2's vocabulary: printable bytes stand for themselves."""
    printable = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    alphabet = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        alphabet.setdefault(byte, chr(256 + len(alphabet) - len(printable)))
    return alphabet


WORDS = "the ship sails north, the other lies in port; größer 東京 one two".split(" ")


def small_bpe(*specials):
    """Contents of tokenizer.json: the bytes, some merges, and these special tokens after them."""
    alphabet = byte_alphabet()
    merges = [["t", "h"], ["th", "e"], [alphabet[32], "the"], ["s", "h"], ["sh", "i"], ["shi", "p"]]
    names = [alphabet[byte] for byte in range(256)] + [left + right for left, right in merges]
    return {"model": {"type": "BPE", "vocab": {name: i for i, name in enumerate(names)}, "merges": merges},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "decoder": {"type": "ByteLevel"},
            "added_tokens": [{"id": len(names) + i, "content": special, "special": True}
                             for i, special in enumerate(specials)]}
