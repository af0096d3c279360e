"""sentencepiece_parity.py ENCODE_TEXTS: ids and texts of SentencePiece models against the Python package
of the same library, on models that it trains here, and on hard texts. Code 77: skipped, saying why."""

import pathlib
import random
import sys
import tempfile

from texts import hard_texts, ours, training_text

try:
    import sentencepiece
except ImportError:
    print("SKIPPED: the Python package sentencepiece is not there")
    sys.exit(77)

# As Llama 2's model, as T5's and XLM's, and one that takes bytes as they are.
MODELS = {
    "llama": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
              "remove_extra_whitespaces": False, "split_digits": True},
    "t5": {"model_type": "unigram"},
    "folded": {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc_cf",
               "user_defined_symbols": ["<sep>", "<tool>"]},
    "plain": {"model_type": "bpe", "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
              "add_dummy_prefix": False, "allow_whitespace_only_pieces": True, "byte_fallback": True},
    "suffix": {"model_type": "bpe", "treat_whitespace_as_suffix": True, "add_dummy_prefix": False},
}


def main():
    random.seed(4)
    text = training_text()
    lines = [line for line in text.splitlines() if line.strip()]
    texts = list(hard_texts(text))
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, settings in MODELS.items():
            prefix = str(pathlib.Path(folder) / name)
            sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_prefix=prefix,
                                                     vocab_size=2000, minloglevel=2, **settings)
            theirs = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
            for given, (ids, digits) in zip(texts, ours(sys.argv[1], prefix + ".model", texts), strict=True):
                expected = theirs.encode(given)
                decoded = bytes.fromhex(digits).decode()
                if ids != expected or decoded != theirs.decode(expected):
                    failures += 1
                    if failures <= 10:
                        print(f"{name}: {given[:80]!a}: {ids[:20]}, theirs {expected[:20]}")
            # Texts in pieces give the same.
            for size in (1, 7, 40, 700):
                cut = ours(sys.argv[1], prefix + ".model", texts, size)
                for given, (ids, _) in zip(texts, cut, strict=True):
                    if ids != theirs.encode(given):
                        failures += 1
                        if failures <= 10:
                            print(f"{name}, pieces of {size}: {given[:80]!a}: {ids[:20]}")
    print(f"{len(texts)} texts, {len(MODELS)} models, sentencepiece {sentencepiece.__version__}: {failures} differ")
    sys.exit(1 if failures else 0)


main()
