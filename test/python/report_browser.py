#!/usr/bin/env python3
"""The page of vis/report.py in headless Chromium, 1280 and 400 pixels wide: nothing runs over the side, no texts of a
figure overlap or leave it, and a long run's page opens soon.

    report_browser.py REPORT.PY STEPS [--few]    # STEPS: of the long run; --few: two of the six pages
"""
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import sample_run

MOST_SECONDS_TO_OPEN = 2.0

chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if not chromium:
    print("skipped: there is no Chromium, so no page can be looked at (apt-get install chromium)")
    sys.exit(77)
if any(importlib.util.find_spec(name) is None for name in ("matplotlib", "jinja2")):
    print("skipped: matplotlib or Jinja2 is not there, so no page can be made (test/run.sh installs both)")
    sys.exit(77)

SCRIPT = pathlib.Path(sys.argv[1]).resolve()
STEPS = int(sys.argv[2])
FEW = sys.argv[3:] == ["--few"]

HARNESS = """<!DOCTYPE html><meta charset="utf-8"><body><pre id="result"></pre><script>
const source = PAGE;
const faults = [];
function look(frame, width, opened) {
  const page = frame.contentDocument, root = page.documentElement;
  if (frame.contentWindow.innerWidth !== width) faults.push("the frame is " + frame.contentWindow.innerWidth + " wide");
  const say = text => faults.push(width + " px" + (opened ? ", opened" : "") + ": " + text);
  if (root.scrollWidth > width) say("the page is " + root.scrollWidth + " pixels wide");
  let texts = 0, pictures = 0;
  for (const svg of page.querySelectorAll("svg")) {
    const frame = svg.getBoundingClientRect();
    if (frame.width === 0) continue;
    pictures += 1;
    const name = svg.closest("figure").id;
    const boxes = [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]).filter(box => box[1].width > 0);
    texts += boxes.length;
    for (let i = 0; i < boxes.length; ++i) {
      const a = boxes[i][1];
      if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1 || a.bottom > frame.bottom + 1)
        say(name + ": '" + boxes[i][0] + "' leaves the figure");
      if (a.height < 8 && a.width < 8) say(name + ": '" + boxes[i][0] + "' is too small to read");
      for (let j = i + 1; j < boxes.length; ++j) {
        const b = boxes[j][1];
        const x = Math.min(a.right, b.right) - Math.max(a.left, b.left), y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (x > 1 && y > 3) say(name + ": '" + boxes[i][0] + "' overlaps '" + boxes[j][0] + "'");
      }
    }
  }
  if (pictures < LEAST || texts < 5 * pictures) say(pictures + " pictures with " + texts + " texts are seen");
}
for (const width of [1280, 721, 720, 400]) {
  const frame = document.createElement("iframe");
  frame.style = "border: 0; height: 900px; width: " + width + "px";
  frame.srcdoc = source;
  frame.onload = () => {
    look(frame, width, false);
    for (const details of frame.contentDocument.querySelectorAll("details")) details.open = true;
    look(frame, width, true);
    document.getElementById("result").textContent += width + " looked at. ";
  };
  document.body.append(frame);
}
addEventListener("load", () => { document.getElementById("result").textContent += "FAULTS " + JSON.stringify(faults) + " END"; });
</script>"""


def browse(path, profile):
    """The document after loading, and the seconds that took."""
    start = time.monotonic()
    result = subprocess.run([chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000", "--dump-dom",
                             f"--user-data-dir={profile}", path.as_uri()], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout, time.monotonic() - start


def looks_well(runs, scratch, least):
    subprocess.run([sys.executable, SCRIPT, *runs, "-o", scratch / "page.html"], check=True, stdout=subprocess.DEVNULL)
    page = json.dumps((scratch / "page.html").read_text()).replace("<", "\\u003c")
    harness = HARNESS.replace("= PAGE;", f"= {page};").replace("LEAST", str(least))
    (scratch / "harness.html").write_text(harness)
    document, _ = browse(scratch / "harness.html", scratch / "profile")
    found = re.search(r"FAULTS (.*?) END</pre>", document, re.S)
    assert found and document.count("looked at. ") >= 4, "the page was not looked at"
    faults = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert not faults, "\n".join([f"{runs}:"] + faults[:20])


def main():
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        many = sample_run.summary(3000)
        many["memory"]["ranks"] = sample_run.ranks(64, 16)
        one = sample_run.write_run(scratch / "one", sample_run.records(3000), many)
        small = sample_run.write_run(scratch / "a_run_with_a_very_long_name_that_has_no_blank_at_all_and_goes_on_and_on", sample_run.records(60),
                                     sample_run.summary(60, samples=["x" * 500], deck={"a.b": "c" * 400}, hosts=["host" * 40] * 4))
        sample_run.write_trace(small, {"Kernel<" + "x" * 73 + ">": [50.0], **{f"Kernel{number}": [9.0] for number in range(20)}}, clock_error_us=0.1)
        old = sample_run.write_run(scratch / "old", sample_run.records(5000, every=50), None, log=sample_run.OLD_LOG)
        spiky = sample_run.records(300)
        for record in spiky[100:103]:
            record.update(loss=1e5, grad_norm=1e9, tokens_per_second=1e-3)
        spiky = sample_run.write_run(scratch / "spiky", spiky, None)
        groups = [{"group": group, "transfer": "all-reduce", "seconds_waited": 1.2}
                  for group in ("world", "data", "shard", "context", "tensor", "embedding", "key/value", "replica")]
        resumed = sample_run.write_run(scratch / "resumed", sample_run.records(400), sample_run.summary(
            400, first_step=220, traffic=groups, memory={"planned": [], "ranks": sample_run.ranks(128, 16), "ranks_left_out": 1872}))
        pages = (([small], 6), ([one, small, old, spiky], 10), ([one], 6), ([old], 5), ([spiky], 5), ([resumed], 6))
        for runs, least in pages[:2] if FEW else pages:
            looks_well(runs, scratch, least)
            print(f"{', '.join(run.name for run in runs)}: looks well at four widths")
        long = sample_run.write_long(scratch / "long", STEPS, {STEPS // 2: 30.0})
        subprocess.run([sys.executable, SCRIPT, long], check=True, stdout=subprocess.DEVNULL)
        (scratch / "blank.html").write_text("<!DOCTYPE html><title>blank</title>")
        blank = min(browse(scratch / "blank.html", scratch / "profile")[1] for _ in range(3))
        page = min(browse(long / "report.html", scratch / "profile")[1] for _ in range(3))
        print(f"{STEPS:,} steps, {os.path.getsize(long / 'report.html') / 1e6:.2f} MB: opens in {page - blank:.2f} s more than a blank page ({blank:.2f} s)")
        assert page - blank < MOST_SECONDS_TO_OPEN


if __name__ == "__main__":
    main()
