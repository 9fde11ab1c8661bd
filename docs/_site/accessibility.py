"""Corrections of the theme's HTML that an accessibility checker (axe) requires."""

import re
from pathlib import Path
from typing import Any

# Captions of the navigation need a level, landmarks of one kind a label, and blocks that scroll on narrow screens the
# focus of the keyboard.
CORRECTIONS = (
    (r'role="heading"(?=>)', 'role="heading" aria-level="2"'),
    (r'<aside class="sidebar-drawer">', '<aside class="sidebar-drawer" aria-label="Pages">'),
    (r"<pre(?=>)", '<pre tabindex="0"'),
    (r'<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'),
    (r'<figure class="align-default"', '<figure tabindex="0" class="align-default"'),
)


def correct(app: Any, error: Exception | None) -> None:
    """Apply the corrections to all pages of a finished build; corrected pages do not change."""
    if error is None:
        for path in Path(app.outdir).rglob("*.html"):
            text = path.read_text(encoding="utf-8")
            for pattern, replacement in CORRECTIONS:
                text = re.sub(pattern, replacement, text)
            path.write_text(text, encoding="utf-8")
