"""Small pieces of a self-contained HTML page; every text that comes in is escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --line: #d0d0d0; --soft: #666; --code: #f5f5f5; }
@media (prefers-color-scheme: dark) { :root { --line: #444; --soft: #aaa; --code: #222; } }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0; }
main { max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
td:first-child { white-space: normal; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.note, figcaption { color: var(--soft); font-size: .85rem; margin: .3rem 0; }
figure { margin: 1.5rem 0; }
/* The figures' own text is black, so they keep a white ground in the dark. */
figure svg { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
pre { background: var(--code); padding: .8rem; overflow-x: auto; font-size: .85rem; border-radius: 4px; }
"""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls sideways where the window is narrower."""
    head = "".join(f"<th>{escape(text)}</th>" for text in header)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def definitions(entries: Mapping[str, str]) -> str:
    """Names and what they are."""
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in entries.items()) + "</dl>"


def inline_svg(text: str, prefix: str) -> str:
    """An SVG file as an element of a page, its identifiers prefixed, since several figures in one page share theirs."""
    svg = text[text.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)  # names outside resources that nobody needs
    svg = re.sub(
        r'(<image\b[^>]*?) id="[^"]*"', r"\1", svg
    )  # equal pictures have equal ones, and nobody refers to them
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", svg)
