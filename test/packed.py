#!/usr/bin/env python3
"""Small files of tests, many in one JSON file: {folder: {path in it: lines of a text, or bytes as base64}}. A folder may have
"like": another folder, whose files it has too, as far as it has none of that path.

usage: packed.py unpack FILE FOLDER [NAME]   writes all folders, or the one, below FOLDER
       packed.py add FILE FOLDER             puts FOLDER under its own name into FILE
"""

import base64
import json
import pathlib
import sys


def encode(content):
    """Lines where that gives the same bytes again."""
    try:
        text = content.decode()
        if text.replace("\n", "").isprintable():
            return text.split("\n")
    except UnicodeDecodeError:
        pass
    return base64.b64encode(content).decode()


def decode(entry):
    return "\n".join(entry).encode() if isinstance(entry, list) else base64.b64decode(entry)


def unpack(packed, name, folder):
    files = dict(packed[name])
    like = files.pop("like", None)
    if like:
        unpack(packed, like, folder)
    for path, entry in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(decode(entry))


def main():
    action, file, folder = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    packed = json.loads(file.read_text()) if file.exists() else {}
    if action == "unpack":
        for name in sys.argv[4:] or packed:
            unpack(packed, name, folder / name)
    elif action == "add":
        packed[folder.name] = {str(path.relative_to(folder)): encode(path.read_bytes())
                               for path in sorted(folder.rglob("*")) if path.is_file()}
        file.write_text(json.dumps(packed, indent=1, ensure_ascii=False) + "\n")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
