"""Convert SVG figures to elements of an HTML page."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

# Colours of `figures.style` that are replaced by the colour scheme of the page: background, text and axes, grid, guide
# lines.
_THEME = {
    "#ffffff": "var(--ground)",
    "#000000": "var(--ink)",
    "#222222": "var(--ink)",
    "#e6e6e6": "var(--line)",
    "#888888": "var(--soft)",
}


def inline_svg(text: str, prefix: str, title: str) -> Markup:
    """An SVG file as an HTML element, with colours of the page's theme and prefixed identifiers.

    The prefix makes identifiers unique on a page with several figures.
    """
    svg = text[text.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)  # it refers to external resources
    # Equal images have equal identifiers, which would be duplicates; nothing refers to them.
    svg = re.sub(r'(<image\b[^>]*?) id="[^"]*"', r"\1", svg)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda match: _THEME.get(match[0], match[0]), svg)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1))
