#!/usr/bin/env python3
"""Turns Parquet files into packed JSON lines that job.task = tokenize reads, one file for each.

    python3 vis/parquet_to_jsonl.py texts/*.parquet -o jsonl          # -> jsonl/NAME.jsonl.gz
    python3 vis/parquet_to_jsonl.py a.parquet -o jsonl --columns text title --plain

Rows are read in batches: memory does not grow with the file. A file appears under its name only when it is
whole; those that are there already are left alone, so that a stopped call can be repeated. Needs pyarrow.
"""
import argparse
import gzip
import json
import os
import pathlib
import sys

ROWS = 1000  # at once


def convert(source, target, columns, plain, module):
    """Writes the columns of `source`, all of text, as records to `target`; returns their number."""
    with module.ParquetFile(source) as parquet:
        for name in columns:
            if name not in parquet.schema_arrow.names:
                sys.exit(f"{source}: there is no column {name}; there are: {', '.join(parquet.schema_arrow.names)}")
            kind = str(parquet.schema_arrow.field(name).type)
            if kind not in ("string", "large_string", "string_view"):
                sys.exit(f"{source}: column {name} holds {kind}, not text")
        temporary = target.with_name(target.name + ".part")
        count = 0
        # The date in a gzip header would make the same rows other bytes.
        with open(temporary, "wb") as raw, (raw if plain else gzip.GzipFile("", "wb", 6, raw, mtime=0)) as packed:
            for batch in parquet.iter_batches(batch_size=ROWS, columns=columns):
                for row in batch.to_pylist():
                    # A row without a text is no document.
                    if row[columns[0]] is None:
                        continue
                    record = {name: row[name] or "" for name in columns}
                    packed.write((json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass"))
                    count += 1
        os.replace(temporary, target)
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path, help="Parquet files")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True, help="folder of the JSON lines")
    parser.add_argument("--columns", nargs="+", default=["text"], help="columns of text to keep; rows without the first one are left out")
    parser.add_argument("--plain", action="store_true", help="do not pack: all ranks can share one plain file")
    options = parser.parse_args()
    try:
        import pyarrow.parquet as module
        from pyarrow.lib import ArrowException
    except ImportError:
        sys.exit("pyarrow is missing: python3 -m pip install pyarrow")
    targets = {}
    for source in options.files:
        if not source.is_file():
            sys.exit(f"{source}: there is no such file")
        target = options.output / (source.stem + (".jsonl" if options.plain else ".jsonl.gz"))
        if target in targets:
            sys.exit(f"{targets[target]} and {source} would both become {target}")
        targets[target] = source
    options.output.mkdir(parents=True, exist_ok=True)
    for target, source in targets.items():
        if target.exists():
            print(f"{target}: is there already")
            continue
        try:
            print(f"{target}: {convert(source, target, options.columns, options.plain, module)} records")
        except (OSError, ArrowException) as error:
            sys.exit(f"{source}: {error}")


if __name__ == "__main__":
    main()
