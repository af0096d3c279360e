#!/usr/bin/env python3
"""What the documents name exists: every relative link and anchor of the Markdown files, and every source file that they or the
pictures of doc/ name. Files that a worked example would add (test/extending/*.patch) count as there. Prints each fault as
path:line, and exits 1 if there is one."""
import fnmatch
import pathlib
import re
import sys

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SOURCE = re.compile(r"[\w*/.-]*[\w*]\.(?:cpp|hpp|cuh?)\b")
PLACE = re.compile(r"(?<![\w/.-])(?:src|include|test|vis|cmake|jobscripts|packaging)/[\w*/.-]*\w\.\w+\b")


def folders(root):
    """Those of the repository, without build trees and what git hides."""
    return [path for path in root.iterdir() if path.is_dir() and not re.match(r"\.|build|(runs|data|install|shared)$", path.name)]


def blank(text, pattern):
    """The text with each match as blanks, so that lines stay where they are."""
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.M | re.S)


def prose(text):
    """The text without code, in which brackets are no links and '#' begins no heading."""
    return blank(blank(text, r"^```.*?^```"), r"`[^`\n]+`")


def anchors(text):
    """Names that GitHub gives the headings."""
    found = set()
    for heading in re.findall(r"^#+ +(.*?) *$", blank(text, r"^```.*?^```"), re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        repeated = (f"{name}-{i}" for i in range(1, 1000))
        found.add(name if name not in found else next(each for each in repeated if each not in found))
    return found


def broken_links(path, text):
    """(index, fault) of each link to a file or heading that is not there."""
    for link in LINK.finditer(prose(text)):
        target, _, anchor = link[1].partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = path.parent / target if target else path
        if not file.exists():
            yield link.start(), f"links to {link[1]}: there is no such file"
        elif anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
            yield link.start(), f"links to {link[1]}: there is no such heading"


def missing_files(text, files):
    """(index, fault) of each source file or place in the repository that is named and is not there."""
    for pattern, exact in ((SOURCE, False), (PLACE, True)):
        for name in pattern.finditer(text):
            if re.fullmatch(r"[A-Z]+", pathlib.PurePosixPath(name[0]).stem):
                continue  # stands for a name
            patterns = [name[0]] if exact else [name[0], "*/" + name[0]]
            if not any(fnmatch.filter(files, each) for each in patterns):
                yield name.start(), f"names {name[0]}: there is no such file"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    files = [path.relative_to(root).as_posix() for folder in folders(root) for path in folder.rglob("*") if path.is_file()]
    for patch in (root / "test/extending").glob("*.patch"):
        files += re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(encoding="utf-8"), re.M)
    documents = [*root.glob("*.md"), *(path for folder in folders(root) for path in folder.rglob("*.md"))]
    faults = set()
    for path in sorted([*documents, *root.glob("doc/*.svg")]):
        text = path.read_text(encoding="utf-8")
        found = [*missing_files(text, files), *(broken_links(path, text) if path.suffix == ".md" else [])]
        faults |= {f"{path.relative_to(root)}:{text.count(chr(10), 0, at) + 1}: {fault}" for at, fault in found}
    print("\n".join(sorted(faults)) or f"{len(documents)} documents: what they link to and name is there")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
