"""What a run of the suite did: test/run.sh writes a line for each part and calls this at the end.

usage: summary.py PARTS: a file of lines "SECONDS<tab>NAME[<tab>JUNIT]", the last a result of ctest --output-junit.
Prints minutes by part, the ten slowest tests, what was skipped and why, and what failed.
"""

import re
import sys
import xml.etree.ElementTree as tree


def reason(case):
    """The line by which a test says that it is skipped, or what ctest says of it."""
    text = case.findtext("system-out") or ""
    said = re.findall(r"(?i)^.*\bskipped\b.*$", text, re.M)
    skipped = case.find("skipped")
    return (said[-1] if said else skipped.get("message", "") if skipped is not None else "").strip()[:150]


def main():
    parts = [line.rstrip("\n").split("\t") for line in open(sys.argv[1], encoding="utf-8")]
    cases = []
    print("\nminutes  part")
    for seconds, name, *results in parts:
        tests = [case for path in results for case in tree.parse(path).getroot().iter("testcase")]
        cases += [(name, case) for case in tests]
        print(f"{float(seconds) / 60:7.1f}  {name}" + (f", {len(tests)} tests" if tests else ""))
    print(f"{sum(float(part[0]) for part in parts) / 60:7.1f}  together")
    print("\nseconds  slowest")
    for name, case in sorted(cases, key=lambda each: -float(each[1].get("time")))[:10]:
        print(f"{float(case.get('time')):7.1f}  {case.get('name')}  ({name})")
    for status, title in (("notrun", "skipped"), ("fail", "FAILED")):
        found = [(name, case) for name, case in cases if case.get("status") == status]
        if found:
            print(f"\n{title}")
        for name, case in found:
            print(f"  {case.get('name')}  ({name})" + (f": {reason(case)}" if status == "notrun" else ""))


main()
