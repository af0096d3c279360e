"""patterns_parity.py ENCODE_TEXTS: ids of byte-level BPE against Hugging Face's `tokenizers` for the
patterns of published tokenizers, for constructs that other engines of regular expressions read otherwise,
and for all characters of Unicode; texts in pieces give the same ids. Code 77: skipped, saying why."""

import json
import pathlib
import random
import sys
import tempfile

from texts import byte_alphabet, hard_texts, ours, training_text

try:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
except ImportError:
    print("SKIPPED: the Python package tokenizers is not there")
    sys.exit(77)

TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
WORDS = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*%s"
CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = WORDS % (CONTRACTED, CONTRACTED) + r"|\p{N}{1,3}" + TAIL
NEMO = WORDS % ("", "") + r"|\p{N}" + TAIL
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
          r"|\s+(?!\S)|\s+")
CL100K_NEW = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$"
              r"|\s*[\r\n]|\s+(?!\S)|\s")
DEEPSEEK_V3 = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
               "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")
LATIN = "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓͰ-ͳΑ-ΡΣ-ϵϷ-ҁҊ-ԯᴀ-ᴫḀ-ἕ"
CJK = "[一-龥ࠀ-一가-퟿]+"
DIGITS = {"type": "Digits", "individual_digits": True}
GPT2_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTES = GPT2_BYTES | {"use_regex": False}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


SHAPES = {
    "o200k": [split(O200K, "Removed", True), BYTES],
    "nemo": [split(NEMO), BYTES],
    "cl100k": [split(CL100K), BYTES],
    "cl100k_new": [split(CL100K_NEW), BYTES],
    "starcoder": [DIGITS, GPT2_BYTES],
    "digits": [DIGITS | {"individual_digits": False}, GPT2_BYTES],
    "deepseek_llm": [split("[\r\n]"), split(rf"\s?[{LATIN}]+"), split("\\s?[!-/:-~！-／：-～‘-‟　-。]+"),
                     split("\\s+$"), split(CJK), DIGITS, BYTES],
    "deepseek_coder": [split("[\r\n]"), split("\\s?\\p{L}+"), split("\\s?\\p{P}+"), split(CJK), DIGITS, BYTES],
    "deepseek_v3": [split("\\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK_V3), BYTES],
    "bloom": [split(" ?[^(\\s|[.,!?…。，、।۔،])]+"), BYTES],
    "prefixed": [GPT2_BYTES | {"add_prefix_space": True}],
    "string": [split(" \\E.", kind="String"), split(" ", kind="String"), BYTES],
    "lines": [split(r"^\s+|\s+$"), BYTES],
    "sets": [split(r"\w+|\h|[^\S\n]+|\p{Han}"), BYTES],
    "not_words": [split(r"\W{1,2}+|."), BYTES],
    "look_behind": [split(r"(?<=[a-e])x|\d+(?=%)|(?>a|ab)c"), BYTES],
    "case": [split(r"(?i:'[kst]|dr\.)"), BYTES],
}


def train(steps, text):
    pre_tokenizer = {"type": "Sequence", "pretokenizers": steps}
    settings = json.loads(Tokenizer(models.BPE()).to_str()) | {"pre_tokenizer": pre_tokenizer}
    tokenizer = Tokenizer.from_str(json.dumps(settings))
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainers.BpeTrainer(
        vocab_size=800, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"]))
    return tokenizer


def characters(steps, stride):
    """A tokenizer in which words around characters are entries, and texts with such words: all characters,
    or every stride-th and those that came to Unicode late."""
    codes = [code for code in [*range(0x33480), *range(0xe0000, 0xe0200)] if not 0xd800 <= code < 0xe000
             and (code % stride == 0 or code < 0x3000 or 0x10000 < code < 0x20000)]
    alphabet = byte_alphabet()
    vocabulary = {alphabet[byte]: byte for byte in range(256)}
    for character in map(chr, codes):
        for word in ("a%sa", "a%s", "%sa", "%s", "!%s!", "!%s", "%s!"):
            name = "".join(alphabet[byte] for byte in (word % character).encode())
            vocabulary.setdefault(name, len(vocabulary))
    settings = json.loads(Tokenizer(models.BPE(ignore_merges=True)).to_str())
    settings["model"]["vocab"] = vocabulary
    settings["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    texts = [word % chr(code) for code in codes for word in ("a%sa", "!%s!")]
    return Tokenizer.from_str(json.dumps(settings)), texts


def compare(name, tokenizer, texts, folder, pieces):
    path = pathlib.Path(folder) / f"{name}.json"
    path.write_text(tokenizer.to_str(), encoding="utf-8")
    expected = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    failures = 0
    for size in pieces:
        for text, ids, (found, _) in zip(texts, expected, ours(sys.argv[1], path, texts, size), strict=True):
            if found == ids:
                continue
            failures += 1
            if failures <= 5:
                print(f"{name}, pieces of {size}: {text[:60]!a}: {found[:12]}, theirs {ids[:12]}")
    return failures


def main():
    random.seed(4)
    text = training_text()[-200_000:] + "def f(x):\n    return x, 123456\n\t\tif y:\r\n" * 20
    texts = [one for one in hard_texts(text) if len(one) < 4000]
    texts += ["Dr. DR.\u017f'K'\u212a'S", "a\n  \n b  \n", "12% 34 axexx abc ac", " \\E. x", "\u6f22\u3001\u5b57 caf\u00e9\u0301",
              "x" * 70 + "\r\n" * 40 + "y", " \u00a0\u3000" * 30 + "z", "1" * 100, "\u1c89\u1c8a \U00010d41\U00010d50 \U000323af!"]
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, steps in SHAPES.items():
            failures += compare(name, train(steps, text), texts, folder, (None, 1, 20, 300))
        count = 0
        for name, (stride, steps) in {
                "llama3": (1, [split(LLAMA3), BYTES]), "v3": (9, SHAPES["deepseek_v3"]), "o": (9, SHAPES["o200k"]),
                "sets": (9, [split(r"\w+|\p{Han}+|\p{M}+|\s+"), BYTES])}.items():
            tokenizer, words = characters(steps, stride)
            failures += compare(name + "_characters", tokenizer, words, folder, (None,))
            count += len(words)
    print(f"{len(texts)} texts, {len(SHAPES)} patterns; {count} words with characters: {failures} differ")
    sys.exit(1 if failures else 0)


main()
