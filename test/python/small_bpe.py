"""Byte-level BPE by hand: the characters that stand for bytes, a tokenizer of a few merges, and words for it."""


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
