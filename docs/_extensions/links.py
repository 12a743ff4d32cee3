"""Every link from a page of the site leads somewhere, and every example has a picture; what does not is a warning."""

from __future__ import annotations

import os
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)
LEADS = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src", "iframe": "src"}


class Page(HTMLParser):
    """The links of a page, and the places in it that links may lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element leads to and is called."""
        attributes = dict(attrs)
        self.places |= {name for key in ("id", "name") if (name := attributes.get(key))}
        if link := attributes.get(LEADS.get(tag, "")):
            self.links.append(link)


def broken(site: Path) -> Iterator[str]:
    """Yield a sentence for every link that leads nowhere."""
    site = site.resolve()
    static = site / "_static"  # templates of the theme are no pages
    pages = {path: Page(path) for path in sorted(site.rglob("*.html")) if static not in path.parents}
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue  # of another site
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            name = path.relative_to(site)
            if not target.exists():
                yield f"{name}: the link {link} leads to no file"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].places:
                yield f"{name}: the link {link} leads to no place on its page"


def without_picture(site: Path) -> Iterator[str]:
    """Yield a sentence for every example of the gallery that shows no picture."""
    for path in sorted((site / "gallery").glob("*.html")):
        if path.stem != "index" and "_images/sphx_glr_" not in path.read_text(encoding="utf-8"):
            yield f"{path.relative_to(site)}: the example has no picture"


def check(app: Sphinx, exception: Exception | None) -> None:
    """Warn of broken links once the site is written."""
    if exception is None and app.builder.format == "html":
        run = os.environ.get("CASTFIT_DOCS") != "quick"
        for sentence in (*broken(Path(app.outdir)), *(without_picture(Path(app.outdir)) if run else ())):
            LOGGER.warning(sentence, type="links")


def setup(app: Sphinx) -> dict[str, Any]:
    """Check after everything that writes."""
    app.connect("build-finished", check, priority=900)
    return {"parallel_read_safe": True}
