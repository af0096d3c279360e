#!/usr/bin/env python3
"""House rules that a program can check, for src/ and include/: no function over 60 lines, no
constructor over 6 parameters; each file opens with a comment; no heavy header in a header; a
comment names no source file that is gone. Prints each violation as path:line and exits 1 if there
is one."""
import pathlib
import re
import sys

MOST_FUNCTION_LINES = 60
MOST_PARAMETERS = 6
HEAVY = ("nlohmann/json.hpp", "trireme/base/json.hpp", "filesystem", "mpi.h", "hdf5.h")
# Headers that include a heavy one all the same, and why.
ALLOWED = {
    "include/trireme/base/json.hpp": "it is the one way to JSON",
    "include/trireme/comm/communicator.hpp": "it holds a handle of MPI, whose type differs between MPIs",
    "src/data/hdf5.hpp": "it wraps HDF5",
    "include/trireme/app/run_record.hpp": "RunRecord holds run.json",
    "include/trireme/checkpoint/local.hpp": "LocalCheckpoint holds run.json",
    "include/trireme/checkpoint/writer.hpp": "Order holds run.json",
    "src/checkpoint/local_file.hpp": "LocalHeader holds run.json",
    "include/trireme/hf/config.hpp": "Config holds keys and values of [model]",
    "src/tasks/training.hpp": "TrainingData holds the vocabulary for run.json",
    "src/tasks/generator.hpp": "Prompt holds the id of its record",
}


def blank_literals(text):
    """Comments and literals become blanks, so that braces and commas count only in code."""
    pattern = re.compile(
        r'^[ \t]*#(?:[^\n\\]|\\.)*|//[^\n]*|/\*.*?\*/|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Za-z_])\'(?:\\.|[^\'\\\n])\'',
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


def lost_files(text, names):
    """(line, name) of each source file that a comment names and that is not among `names`."""
    for number, line in enumerate(text.split("\n"), 1):
        for name in re.findall(r"\b\w+\.(?:cpp|hpp|cuh?)\b", line.partition("//")[2]):
            if name not in names:
                yield number, name


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    faults = []
    files = [path for folder in ("src", "include") for path in (root / folder).rglob("*")
             if path.suffix in (".cpp", ".hpp", ".cu", ".cuh")]
    names = {path.name for folder in ("src", "include", "test") for path in (root / folder).rglob("*")}
    for path in sorted(files):
        text = path.read_text()
        name = path.relative_to(root)
        if not text.startswith("//"):
            faults.append(f"{name}:1: no comment says what the file is for")
        heavy = [(text.count("\n", 0, found.start()) + 1, found[1])
                 for found in re.finditer(r'^#include [<"]([^>"]+)[>"]', text, re.M) if found[1] in HEAVY]
        if path.suffix in (".hpp", ".cuh"):
            if name.as_posix() not in ALLOWED:
                faults += [f"{name}:{line}: {header} is heavy: declare (json_fwd.hpp), or move what needs it to a .cpp" for line, header in heavy]
            elif not heavy:
                faults.append(f"{name}:1: includes no heavy header, and may go from ALLOWED of house_rules.py")
        faults += [f"{name}:{line}: names {lost}, which is no file" for line, lost in lost_files(text, names)]
        code = blank_literals(text)
        for function, line, length in functions(code):
            if length > MOST_FUNCTION_LINES:
                faults.append(f"{name}:{line}: {function} has {length} lines, at most {MOST_FUNCTION_LINES}")
        for made, line, count in constructors(code):
            if count > MOST_PARAMETERS:
                faults.append(f"{name}:{line}: constructor of {made} has {count} parameters, at most {MOST_PARAMETERS}")
    faults += [f"{name}: is no file, and may go from ALLOWED of house_rules.py" for name in ALLOWED if not (root / name).is_file()]
    print("\n".join(faults) if faults else f"{len(files)} files keep the house rules")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
