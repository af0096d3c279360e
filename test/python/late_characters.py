"""late_characters.py: prints the table of src/data/tokenizer/pattern.cpp: general categories with the characters
that Unicode has had since version 14, or that changed theirs, as the regular expressions of Hugging Face's
`tokenizers` know them (0.23: Unicode 16). Needs a Python whose unicodedata is that of Unicode 14 (3.11)."""

import itertools
import sys
import unicodedata

from tokenizers import Regex, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()


def main():
    if unicodedata.unidata_version != "14.0.0":
        sys.exit(f"unicodedata {unicodedata.unidata_version}: 14.0.0 is needed")
    codes = [code for code in range(0x110000) if not 0xd800 <= code < 0xe000]
    text = "".join(map(chr, codes))
    for category in CATEGORIES:
        pattern = pre_tokenizers.Split(Regex(rf"\p{{{category}}}+"), "removed", invert=True)
        late = [code for _, (begin, end) in pattern.pre_tokenize_str(text) for code in codes[begin:end]
                if unicodedata.category(chr(code)) != category]
        # Of neighbours each has the same difference to its place in the list.
        runs = [[code for _, code in run] for _, run in itertools.groupby(enumerate(late), lambda each: each[1] - each[0])]
        if runs:
            print(f'{{"{category}", "{" ".join(f"{r[0]:X}" + (f"-{r[-1]:X}" if len(r) > 1 else "") for r in runs)}"}},')


main()
