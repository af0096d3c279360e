"""late_characters.py: prints the table of src/data/tokenizer/pattern_syntax.cpp: categories of the characters
that Unicode has had since version 14, or that changed theirs, as the regular expressions of Hugging Face's
`tokenizers` know them (0.23: Unicode 16). Needs a Python whose unicodedata is that of Unicode 14 (3.11)."""

import sys
import unicodedata

from tokenizers import Regex, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()


def main():
    if unicodedata.unidata_version != "14.0.0":
        sys.exit(f"unicodedata {unicodedata.unidata_version}: 14.0.0 is needed")
    codes = [code for code in range(0x110000) if not 0xd800 <= code < 0xe000]
    text = "".join(map(chr, codes))
    ranges = []
    for category in CATEGORIES:
        pattern = pre_tokenizers.Split(Regex(rf"\p{{{category}}}+"), "removed", invert=True)
        for _, (begin, end) in pattern.pre_tokenize_str(text):
            for code in codes[begin:end]:
                if unicodedata.category(chr(code)) == category:
                    continue
                if ranges and ranges[-1][1] == code - 1 and ranges[-1][2] == category:
                    ranges[-1][1] = code
                else:
                    ranges.append([code, code, category])
    for first, last, category in sorted(ranges):
        print(f'{{0x{first:X}, 0x{last:X}, "{category}"}},')


main()
