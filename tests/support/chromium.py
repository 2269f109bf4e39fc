"""Headless Chromium, for what a page really shows. None of its options reaches the network."""

from __future__ import annotations

import json
import re
import subprocess
from html import unescape
from pathlib import Path
from shutil import which
from typing import Any

PROGRAM = which("chromium") or which("chromium-browser") or which("google-chrome")

SCRIPT = """<script>addEventListener("load", () => {
  const out = document.createElement("pre"); out.id = "measured";
  const visible = e => { const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0; };
  out.textContent = JSON.stringify({
    width: innerWidth, scroll: document.scrollingElement.scrollWidth,
    wide: [...document.querySelectorAll("body *")].filter(e => visible(e) && !e.closest(".scroll, .skip")
      && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + "." + e.className),
    broken: [...document.querySelectorAll(".scroll th, .scroll td")].filter(e => { const r = document.createRange();
      r.selectNodeContents(e); return visible(e) && !e.childElementCount && /^\\S{1,12}$/.test(e.innerText)
      && new Set([...r.getClientRects()].map(line => line.top)).size > 1; }).map(e => e.innerText),
    open: [...document.querySelectorAll("details[open]")].map(e => e.id),
    text: document.body.innerText,
  });
  document.body.append(out);
});</script>"""


def measure(page: Path, width: int, scratch: Path) -> dict[str, Any]:
    """Load a page in a frame `width` pixels wide; its width, scroll width, elements that stick out, short
    cells of more than one line, and its text.

    The frame is what gives the width: Chromium's own window is never narrower than 500 pixels.
    """
    assert PROGRAM is not None, "needs Chromium (apt install chromium)"
    # The measuring script needs the page's policy out of the way; that the policy is there is another test's matter.
    text = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", page.read_text())
    inner = scratch / f"inner-{width}.html"
    inner.write_text(text.replace("</body>", SCRIPT + "</body>"))
    outer = scratch / f"outer-{width}.html"
    outer.write_text(
        f'<!DOCTYPE html><iframe src="{inner.name}" style="width:{width}px;height:900px;border:0" id="f"></iframe>'
        '<script>addEventListener("load", () => { document.title = "x"; const p = document.createElement("pre");'
        'p.id = "outer"; p.textContent = f.contentDocument.getElementById("measured").textContent;'
        "document.body.append(p); });</script>"
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    options += [
        "--allow-file-access-from-files",
        "--virtual-time-budget=5000",
        f"--user-data-dir={scratch / 'profile'}",
    ]
    options += [f"--window-size={max(width, 600)},1000", "--dump-dom", outer.as_uri()]
    done = subprocess.run([PROGRAM, *options], capture_output=True, text=True, timeout=90, check=True)
    match = re.search(r'<pre id="outer">(.*?)</pre>', done.stdout, re.S)
    assert match, done.stderr[-2000:]
    measured: dict[str, Any] = json.loads(unescape(match[1]))
    return measured
