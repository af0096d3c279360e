#!/usr/bin/env python3
"""Draws scaling studies (job.task = scaling): speed-up, efficiency, and where the ranks' time went; a table for LaTeX.

    python3 vis/scaling.py scaling                          # -> scaling/scaling.pdf
    python3 vis/scaling.py ranks_* --output scaling.svg     # studies of several jobs, one number of ranks each
    python3 vis/scaling.py scaling --latex table.tex        # as well; - prints it

A study is its folder. Several are merged: the fewest ranks of all are the baseline, and all keys of their decks must be
alike but those that say what is measured and where it goes. Needs matplotlib (Debian: python3-matplotlib; in a checkout,
jobscripts/workstation.sh makes build/venv with it). Exit codes: 0 done; 1 the figure cannot be written; 2 no such study,
or studies that cannot be compared; 4 matplotlib is missing.
"""
import argparse
import logging
import pathlib
import sys

from scaling_study import figure, latex, studies

NO_PACKAGES = 4


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="folder of a study: scaling.csv and deck.in")
    parser.add_argument("-o", "--output", metavar="FILE", help=".pdf, .svg or .png (default: scaling.pdf in the first folder)")
    parser.add_argument("--latex", metavar="FILE", help="a table (booktabs) as well; -: to the screen")
    parser.add_argument("--title", default="", help="above the figure (default: none, the caption says it)")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        points = studies.read(arguments.folders)
    except studies.Refused as error:
        print(f"scaling.py: error: {error}", file=sys.stderr)
        return 2
    output = pathlib.Path(arguments.output or pathlib.Path(arguments.folders[0], "scaling.pdf"))
    try:
        figure.draw(points, output, arguments.title)
        print(output)
        if arguments.latex:
            text = latex.table(points)
            if arguments.latex == "-":
                print(text, end="")
            else:
                pathlib.Path(arguments.latex).write_text(text, encoding="utf-8")
                print(arguments.latex)
    except ImportError as error:
        print(f"scaling.py: {error}\n  The figure needs matplotlib: use build/venv/bin/python3 (jobscripts/workstation.sh makes it), "
              "apt-get install python3-matplotlib, or pip install matplotlib.", file=sys.stderr)
        return NO_PACKAGES
    except (OSError, ValueError) as error:
        print(f"scaling.py: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
