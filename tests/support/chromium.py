"""Headless Chromium, for what a page really shows. None of its options reaches the network."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Collection
from html import unescape
from pathlib import Path
from shutil import which
from typing import Any

PROGRAM = which("chromium") or which("chromium-browser") or which("google-chrome")

SCRIPT = """<script>addEventListener("load", () => {
  const out = document.createElement("pre"); out.id = "measured";
  const visible = e => { const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0; };
  const wide = () => [...document.querySelectorAll("body *")].filter(e => visible(e)
    && !e.closest(".scroll, .skip, svg") && e.getBoundingClientRect().right > innerWidth + 1)
    .map(e => e.tagName + "." + e.className);
  const lines = range => new Set([...range.getClientRects()].filter(r => r.width).map(r => Math.round(r.top))).size;
  const found = {
    width: innerWidth, scroll: document.scrollingElement.scrollWidth, wide: wide(),
    broken: [...document.querySelectorAll(".scroll th, .scroll td")].filter(e => { const r = document.createRange();
      r.selectNodeContents(e); return visible(e) && !e.childElementCount && /^\\S{1,12}$/.test(e.innerText)
      && lines(r) > 1; }).map(e => e.innerText),
    open: [...document.querySelectorAll("details[open]")].map(e => e.id),
    text: document.body.innerText,
  };

  // Whatever is folded away is measured too.
  for (const e of document.querySelectorAll("details")) e.open = true;
  found.wide.push(...wide());
  found.scroll = Math.max(found.scroll, document.scrollingElement.scrollWidth);
  const boxes = [];  // of every line of every text
  found.spilled = []; found.split = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; node = walk.nextNode();) {
    const text = node.data.trim(), from = node.parentElement;
    if (!text || from.closest(".skip, script, svg") || !visible(from)) continue;
    if (getComputedStyle(from.closest("thead") || from).position === "absolute") continue;  // for a screen reader alone
    const range = document.createRange(); range.selectNodeContents(node);
    let block = from;
    while (getComputedStyle(block).display === "inline") block = block.parentElement;
    const b = block.getBoundingClientRect(), tag = from.closest(".tag"), scrolled = from.closest(".scroll");
    for (const r of [...range.getClientRects(), ...(tag ? tag.getClientRects() : [])]) {
      if (r.width < 1) continue;
      if (r.left < b.left - 1 || r.right > b.right + 1) found.spilled.push(text.slice(0, 60));
    }
    for (const r of range.getClientRects())
      if (r.width >= 1) boxes.push({node, text, scrolled, l: r.left, r: r.right, t: r.top, b: r.bottom});
    for (const word of node.data.matchAll(/(?<!\\S)[A-Za-z0-9]{1,20}(?!\\S)/g)) {
      range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
      if (lines(range) > 1) found.split.push(word[0]);
    }
  }
  boxes.sort((x, y) => x.t - y.t);
  found.overlapping = [];
  boxes.forEach((x, i) => {
    for (let j = i + 1; j < boxes.length && boxes[j].t < x.b; j++) {
      const y = boxes[j], high = Math.min(x.b, y.b) - y.t, broad = Math.min(x.r, y.r) - Math.max(x.l, y.l);
      // Boxes of neighbouring lines touch: a font is higher than its letters.
      if (x.node !== y.node && x.scrolled === y.scrolled && broad > 1 && high > 0.3 * Math.min(x.b - x.t, y.b - y.t))
        found.overlapping.push([x.text.slice(0, 60), y.text.slice(0, 60)]);
    }
  });
  found.texts = boxes.length;
  out.textContent = JSON.stringify(found);
  document.body.append(out);
});</script>"""


GATHER = """<script>addEventListener("load", () => {
  for (const frame of document.querySelectorAll("iframe")) {
    const p = document.createElement("pre"); p.className = "outer";
    p.textContent = frame.contentDocument.getElementById("measured").textContent;
    document.body.append(p);
  }
});</script>"""


def measure(page: Path, widths: Collection[int], scratch: Path) -> dict[int, dict[str, Any]]:
    """Load a page in frames of these widths, in pixels, with one start of the browser. Of each: `width`, `scroll`
    (scroll width), `wide` (elements that stick out), `broken` (short cells of more than one line), `open` (ids),
    `text`; and, with all that is folded away laid open, `overlapping` (pairs of texts that lie over each other),
    `spilled` (texts that leave their own block), `split` (short words that go on in the next line) and `texts`, how
    many lines were looked at.

    The frames are what gives the width: Chromium's own window is never narrower than 500 pixels.
    """
    # The measuring script needs the page's policy out of the way; that the policy is there is another test's matter.
    text = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", page.read_text(encoding="utf-8"))
    (scratch / "inner.html").write_text(text.replace("</body>", SCRIPT + "</body>"), encoding="utf-8")
    frames = "".join(
        f'<iframe src="inner.html" style="width:{width}px;height:900px;border:0;display:block"></iframe>'
        for width in widths
    )
    outer = scratch / "outer.html"
    outer.write_text(f"<!DOCTYPE html>{frames}{GATHER}")
    done = start(scratch, f"--window-size={max(*widths, 600)},1000", "--virtual-time-budget=5000", "--dump-dom", outer)
    layouts = [json.loads(unescape(text)) for text in re.findall(r'<pre class="outer">(.*?)</pre>', done, re.S)]
    assert len(layouts) == len(widths), done[-2000:]
    return dict(zip(widths, layouts, strict=True))


def picture(page: Path, width: int, height: int, out: Path, scratch: Path) -> None:
    """The page's top as a PNG."""
    start(scratch, f"--window-size={width},{height}", "--hide-scrollbars", f"--screenshot={out}", page)


def start(scratch: Path, *options: str | Path) -> str:
    """Run Chromium once and give what it printed; its profile is in `scratch`."""
    assert PROGRAM is not None, "needs Chromium (apt install chromium)"
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    quiet += ["--allow-file-access-from-files", f"--user-data-dir={scratch / 'profile'}"]
    argv = [PROGRAM, *quiet, *(o.as_uri() if isinstance(o, Path) else o for o in options)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=90, check=True).stdout
