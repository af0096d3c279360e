"""parquet.py TRIREME HELPER: Parquet files become JSON lines, and these a token file with the same documents.
Code 77: skipped, saying why."""

import gzip
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import h5py
    import pyarrow
    import pyarrow.parquet
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)

TRIREME, HELPER = sys.argv[1:3]
TEXTS = ["the ship sails", "größer 東京", "tabs\tand\nlines", "", None, '"quoted" \\ text \u0001'] * 400
TEXTS = [text and f"{text} {i % 100}" for i, text in enumerate(TEXTS)]


def run(*command, code=0):
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != code:
        sys.exit(f"code {result.returncode} instead of {code} from {command}:\n{result.stdout}{result.stderr}")
    return result.stdout + result.stderr


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        table = pyarrow.table({"text": TEXTS, "id": range(len(TEXTS)), "title": ["t"] * len(TEXTS)})
        pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=700)
        pyarrow.parquet.write_table(table.slice(0, 3), folder / "b.parquet", compression="zstd")
        helper = [sys.executable, HELPER]
        run(*helper, str(folder / "a.parquet"), str(folder / "b.parquet"), "-o", str(folder / "out"))
        wanted = [text for text in TEXTS if text is not None]
        with gzip.open(folder / "out/a.jsonl.gz", "rt", encoding="utf-8") as file:
            assert [json.loads(line)["text"] for line in file] == wanted
        assert "there already" in run(*helper, str(folder / "a.parquet"), "-o", str(folder / "out"))
        # Errors: a column that is missing, one of numbers, a file that is none.
        assert "no column body" in run(*helper, str(folder / "a.parquet"), "-o", str(folder / "x"), "--columns", "body", code=1)
        assert "not text" in run(*helper, str(folder / "a.parquet"), "-o", str(folder / "x"), "--columns", "id", code=1)
        (folder / "bad.parquet").write_text("no Parquet")
        assert "bad.parquet" in run(*helper, str(folder / "bad.parquet"), "-o", str(folder / "x"), code=1)
        assert not list((folder / "x").glob("*.jsonl.gz"))
        (folder / "deck.in").write_text("# Keys are on the command line.\n")
        run(TRIREME, "-i", str(folder / "deck.in"), "job.task=tokenize", "tokenize.kind=sentencepiece", "tokenize.vocabulary_size=320",
            f"tokenize.train={folder}/out/*.jsonl.gz", f"data.file={folder}/a.h5", "tokenize.valid_fraction=0.1",
            "tokenize.test_fraction=0.1")
        with h5py.File(folder / "a.h5", "r") as file:
            found = sum(len(file[split]["documents"]) for split in ("train", "valid", "test"))
        assert found == len([text for text in wanted if text]) + 3, found


main()
