"""The texts of all pages in one script, because a search page that is opened from disk cannot fetch other pages."""

import json
import re
from pathlib import Path
from typing import Any

SCRIPT = "page_texts.js"
# Sphinx's script fetches each result to show the lines that match; browsers refuse this for `file:` addresses.
REPLACE_FETCH = """
if (location.protocol === "file:") {
  const top = new URL(document.documentElement.dataset.content_root, location.href).href;
  window.fetch = async (address) => {
    const text = PAGE_TEXTS[new URL(address, location.href).href.slice(top.length)] || "";
    return { text: async () => `<div role="main">${text}</div>` };
  };
}
"""


def load_on_search_page(app: Any, pagename: str, *context: Any) -> None:
    """Load the script in the page of the search, and in no other."""
    if pagename == "search":
        app.add_js_file(SCRIPT)


def write(app: Any, error: Exception | None) -> None:
    """Write the script of a finished build."""
    if error is None:
        folder = Path(app.outdir)
        texts = {path.relative_to(folder).as_posix(): _main_text(path) for path in sorted(folder.rglob("*.html"))}
        content = f"const PAGE_TEXTS = {json.dumps(texts)};\n{REPLACE_FETCH}"
        (folder / "_static" / SCRIPT).write_text(content, encoding="utf-8")


def _main_text(path: Path) -> str:
    """The text of a page's article, still escaped, without tags, scripts and links to headings."""
    found = re.search(r'<article role="main".*?</article>', path.read_text(encoding="utf-8"), re.DOTALL)
    text = re.sub(
        r'<script.*?</script>|<a class="headerlink".*?</a>|<[^>]+>', "", found[0] if found else "", flags=re.DOTALL
    )
    return re.sub(r"\s+", " ", text)
