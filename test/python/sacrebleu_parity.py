"""sacrebleu_parity.py SCORE_TEXTS: BLEU, chrF and exact match against the Python package sacrebleu, on
outputs like real ones and on odd ones. Code 77: skipped, saying why."""

import pathlib
import random
import subprocess
import sys
import tempfile

from texts import hard_texts, training_text

try:
    import sacrebleu
except ImportError:
    print("SKIPPED: the Python package sacrebleu is not there")
    sys.exit(77)

TOLERANCE = 1e-9  # relative

ODD = ["", " ", "a", "The U.S. has 3.5% (of 1,000.50), i.e. 2-3 dogs-and-cats... ok?", "&quot;x&quot; &lt;y&gt; &amp;amp;",
       "<skipped>left", "1.2.3,4-5 -6 7- .8 9. ,,", "naïve Größe — “zitiert” «guillemets»", "日本語の文。 中文，句子！",
       "non\u00a0breaking\u2003spaces\u3000here", "tab\tand\x0bvertical\x1cseparators\x85next", "emoji 😀😀 👩‍👩‍👧 end",
       "a.b", "a .b", "x/y=z^2*[3]{4}|5~`", "don't 'quote' it's", "$3.00,€5", "−5 ‐ – —", "...", ".,.,", "٣.٤ ५,६", "á.é"]


def spoilt(line, rate):
    """The line as a translator may have it: words left out, exchanged, repeated, cut."""
    words = line.split(" ")
    out = []
    for word in words:
        luck = random.random()
        if luck < rate / 4:
            continue
        out.append(random.choice(words) if luck < rate / 2 else word)
        if rate / 2 <= luck < rate * 0.6:
            out.append(word)
        if rate * 0.6 <= luck < rate * 0.8:
            out[-1] = out[-1][: max(1, len(out[-1]) - 2)]
    return " ".join(out)


def cases():
    words, lines = training_text().split(), []
    while words and len(lines) < 400:
        count = random.randint(1, 30)
        lines.append(" ".join(words[:count]).replace(" ,", ",").replace(" .", "."))
        words = words[count:]
    hard = [text.replace("\n", " ").replace("\r", " ") for text in hard_texts("\n".join(lines[:200]))]
    hard = [text.encode("utf-8", "replace").decode() for text in hard if len(text) < 5000]
    for rate in (0, 0.1, 0.5, 1):
        yield f"spoilt {rate}", [spoilt(line, rate) for line in lines], lines
    yield "odd against itself", ODD, ODD
    for shift in (1, 5, 9):
        yield f"odd against others {shift}", ODD, ODD[shift:] + ODD[:shift]
    yield "odd, spoilt", [spoilt(line, 0.5) for line in ODD * 5], ODD * 5
    yield "hard, spoilt", [spoilt(line, 0.3) for line in hard], hard
    yield "empty output", [""] * len(lines[:20]), lines[:20]
    yield "empty references", lines[:20], [""] * len(lines[:20])
    yield "no match", ["aaa bbb ccc ddd eee"] * 5, ["1 2 3 4 5 6"] * 5
    yield "too short for an order", ["a b", "c"], ["a b", "d"]
    yield "no match of some orders", ["the cat sat here now"] * 3, ["the dog sat there cat"] * 3
    yield "shorter than references", [line[: len(line) // 2] for line in lines[:50]], lines[:50]
    for line in [*lines[:15], *ODD]:
        yield f"one line {line[:20]!a}", [spoilt(line, 0.4)], [line]


def main():
    random.seed(5)
    failures = number = 0
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(pathlib.Path(folder) / name) for name in ("hypotheses", "references")]
        for name, hypotheses, references in cases():
            for path, lines in zip(paths, (hypotheses, references), strict=True):
                with open(path, "w", encoding="utf-8", newline="") as file:
                    file.write("".join(line + "\n" for line in lines))
            output = subprocess.run([sys.argv[1], *paths], check=True, capture_output=True, text=True).stdout
            ours = [float(value) for value in output.split()]
            exact = sum(h == r for h, r in zip(hypotheses, references, strict=True))
            theirs = [sacrebleu.corpus_bleu(hypotheses, [references], force=True).score,
                      sacrebleu.corpus_chrf(hypotheses, [references]).score, 100 * exact / len(references)]
            number += 1
            for score, mine, their in zip(("BLEU", "chrF", "exact match"), ours, theirs, strict=True):
                if abs(mine - their) > TOLERANCE * max(abs(their), 1e-3):
                    failures += 1
                    print(f"{name}: {score} {mine!r}, theirs {their!r}")
    print(f"{number} outputs, sacrebleu {sacrebleu.__version__}: {failures} scores differ")
    bleu = sacrebleu.metrics.BLEU()
    bleu.corpus_score(["a"], [["a"]])
    print(bleu.get_signature())
    sys.exit(1 if failures else 0)


main()
