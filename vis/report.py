#!/usr/bin/env python3
"""Makes one self-contained HTML page of one or more runs: loss, samples, speed, memory, events, deck.

    python3 vis/report.py runs/wikitext2_small              # -> runs/wikitext2_small/report.html
    python3 vis/report.py runs/a runs/b -o compare.html     # overlaid, with the keys that differ

A run is its folder, ended, under way or killed. Needs matplotlib and Jinja2 (Debian: python3-matplotlib,
python3-jinja2). Exit codes: 0 done; 1 the page cannot be written; 2 no such run; 4 a package is missing.
"""
import argparse
import logging
import os
import pathlib
import signal
import sys
import tempfile
import warnings

NO_PACKAGES = 4


def write_whole(path, text):
    """Replaces the file: a page that was there stays whole if this one cannot be written."""
    handle, temporary = tempfile.mkstemp(prefix=".report.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folder")
    parser.add_argument("-o", "--output", metavar="FILE", help="the page (default: report.html in the first run)")
    parser.add_argument("--seconds", type=int, default=0, help="end after so many seconds, without a page; 0: no bound")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    if arguments.seconds > 0:
        signal.alarm(arguments.seconds)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")  # glyphs that matplotlib's font lacks: the browser has them
    # A settings folder for matplotlib's list of fonts, where the home folder cannot be written.
    if not os.access(os.path.expanduser("~"), os.W_OK):
        os.environ.setdefault("MPLCONFIGDIR", os.path.join(tempfile.gettempdir(), f"matplotlib-{os.getuid()}"))
    try:
        from report import page
        from report.words import printable
    except ImportError as error:
        print(f"report.py: {error}\n  The page needs matplotlib and Jinja2: apt-get install python3-matplotlib python3-jinja2, "
              "or pip install matplotlib jinja2.", file=sys.stderr)
        return NO_PACKAGES
    try:
        text = page.make_page(arguments.runs)
    except FileNotFoundError as error:
        print(printable(f"report.py: {error}"), file=sys.stderr)
        return 2
    first = pathlib.Path(arguments.runs[0])
    folder = first if first.is_dir() else first.parent
    output = pathlib.Path(arguments.output) if arguments.output else folder / "report.html"
    try:
        write_whole(output, text)
    except OSError as error:
        print(f"report.py: {printable(output)}: cannot be written: {error.strerror}\n  Choose another place with -o FILE, or free some space.",
              file=sys.stderr)
        return 1
    print(printable(output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
