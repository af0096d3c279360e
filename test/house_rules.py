#!/usr/bin/env python3
"""House rules that a program can check, for src/ and include/: no function over 60 lines, no
constructor over 6 parameters; each file opens with a comment. Prints each violation as path:line
and exits 1 if there is one."""
import pathlib
import re
import sys

MOST_FUNCTION_LINES = 60
MOST_PARAMETERS = 6


def blank_literals(text):
    """Comments and literals become blanks, so that braces and commas count only in code."""
    pattern = re.compile(
        r'^[ \t]*#[^\n]*(?:\\\n[^\n]*)*|//[^\n]*|/\*.*?\*/|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Za-z_])\'(?:\\.|[^\'\\\n])\'',
        re.S | re.M)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def matching(text, start, opening, closing):
    """Index after the bracket that closes the one at `start`; None if there is none."""
    depth = 0
    for at in range(start, len(text)):
        if text[at] == opening:
            depth += 1
        elif text[at] == closing:
            depth -= 1
            if depth == 0:
                return at + 1
    return None


def functions(code):
    """(name, first line, lines) of each function body: a brace after a parameter list."""
    scopes = []  # of open braces: (is function, name, index)
    for at, character in enumerate(code):
        if character == "{":
            # The text since the last statement ended says what this brace opens.
            begin = max(code.rfind(c, 0, at) for c in ";{}") + 1
            head = code[begin:at]
            inside = any(scope[0] for scope in scopes)
            found = re.search(r"([~\w:]+|operator[^\s(]+)\s*\(", head)
            control = re.match(r"\s*(if|for|while|switch|do|else|try|catch|namespace|struct|class|enum|union)\b", head)
            is_function = not inside and found is not None and control is None and "=" not in head.split("(")[0]
            first = begin + len(head) - len(head.lstrip())
            scopes.append((is_function, found[1] if found else "", first))
        elif character == "}" and scopes:
            is_function, name, first = scopes.pop()
            if is_function:
                line = code.count("\n", 0, first) + 1
                yield name, line, code.count("\n", first, at) + 1


def parameters(text):
    """Number of parameters in the text between the parentheses of a declaration."""
    if not text.strip():
        return 0
    depth, count = 0, 1
    for character in text:
        depth += character in "(<[{"
        depth -= character in ")>]}"
        count += character == "," and depth == 0
    return count


def constructors(code):
    """(class, line, parameters) of each constructor's declaration in a class."""
    for found in re.finditer(r"\b(?:class|struct)\s+(\w+)[^;{()]*\{", code):
        end = matching(code, found.end() - 1, "{", "}")
        if end is None:
            continue
        for made in re.finditer(r"(?<![~\w:.>])%s\s*\(" % found[1], code[found.end():end]):
            start = found.end() + made.end() - 1
            close = matching(code, start, "(", ")")
            if close is not None:
                yield found[1], code.count("\n", 0, start) + 1, parameters(code[start + 1:close - 1])


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    faults = []
    files = [path for folder in ("src", "include") for path in (root / folder).rglob("*")
             if path.suffix in (".cpp", ".hpp", ".cu", ".cuh")]
    for path in sorted(files):
        text = path.read_text()
        name = path.relative_to(root)
        if not text.startswith("//"):
            faults.append(f"{name}:1: no comment says what the file is for")
        code = blank_literals(text)
        for function, line, length in functions(code):
            if length > MOST_FUNCTION_LINES:
                faults.append(f"{name}:{line}: {function} has {length} lines, at most {MOST_FUNCTION_LINES}")
        for made, line, count in constructors(code):
            if count > MOST_PARAMETERS:
                faults.append(f"{name}:{line}: constructor of {made} has {count} parameters, at most {MOST_PARAMETERS}")
    print("\n".join(faults) if faults else f"{len(files)} files keep the house rules")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
