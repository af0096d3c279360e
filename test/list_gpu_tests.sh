#!/usr/bin/env bash
# The GPU tests of a configured build tree, one a line: name, seconds it may take, ranks (0: without
# mpirun), and its program or its script; tabs between them.
#   bash test/list_gpu_tests.sh BUILD
set -euo pipefail
ctest --test-dir "${1:?a build tree}" --show-only=json-v1 | python3 -c '
import json, os, sys
for test in json.load(sys.stdin)["tests"]:
    properties = {p["name"]: p["value"] for p in test["properties"]}
    if "gpu" in properties.get("LABELS", []):
        # A program that is not built yet has no command; a test of one process has its name.
        command = test.get("command", [test["name"]])
        ranks = command[command.index("-n") + 1] if "-n" in command else 0
        seconds = int(properties.get("TIMEOUT", 1200))
        print(test["name"], seconds, ranks, os.path.basename(command[-1]), sep="\t")'
