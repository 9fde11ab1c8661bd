"""Figures as elements of an HTML page."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

# Colours of `figures.style` that follow the colour scheme of the page: ground, text and axes, grid, guide lines.
_THEME = {
    "#ffffff": "var(--ground)",
    "#000000": "var(--ink)",
    "#222222": "var(--ink)",
    "#e6e6e6": "var(--line)",
    "#888888": "var(--soft)",
}


def inline_svg(text: str, prefix: str, title: str) -> Markup:
    """An SVG file as an element: identifiers prefixed, because figures of one page share them; colours by theme."""
    svg = text[text.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)  # it names outside resources
    # Equal pictures have equal identifiers, which nothing refers to.
    svg = re.sub(r'(<image\b[^>]*?) id="[^"]*"', r"\1", svg)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda found: _THEME.get(found[0], found[0]), svg)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1))
