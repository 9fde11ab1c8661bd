"""The pages that the site makes from the program: one per homogenizer, learners, domains, checks, Python names."""

from pathlib import Path
from typing import Any

from _site import (
    accessibility,
    check_pages,
    docstrings,
    method_pages,
    offline_search,
    plugin_pages,
    python_pages,
    suite_pages,
)


def write(app: Any) -> None:
    """Write the generated pages before Sphinx reads the sources."""
    source = Path(app.srcdir)
    pages = {
        **method_pages.pages(source / "methods"),
        **plugin_pages.pages(),
        **check_pages.pages(),
        **python_pages.pages(),
        **suite_pages.pages(source),
    }
    for name, text in pages.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # unchanged pages are not built again
            path.write_text(text, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", write)
    app.connect("source-read", method_pages.link_to_pages)
    app.connect("autodoc-process-docstring", docstrings.to_rst)
    app.connect("html-page-context", offline_search.load_on_search_page)
    app.connect("build-finished", accessibility.correct)
    app.connect("build-finished", offline_search.write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
