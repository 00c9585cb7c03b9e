"""
Look for dead links in a built site, and for anything that a page would fetch from elsewhere.

python docs/check_site.py build/site
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
"""Attributes whose address a browser fetches to show the page."""


class Page(HTMLParser):
    """The anchors of a page, what it links to, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (name == "id" or (tag == "a" and name == "name")):
                self.anchors.add(value)
            elif value and tag == "a" and name == "href":
                self.links.append(value)
            elif value and (tag, name) in LOADED and not value.startswith("data:"):
                self.loads.append(value)


def elsewhere(address: str) -> bool:
    return bool(urlsplit(address).scheme or address.startswith("//"))


def problem_of_link(path: Path, address: str, pages: dict[Path, Page]) -> str | None:
    """What is wrong with a link inside the site, if anything."""
    parts = urlsplit(address)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.exists():
        return f"links to {address}, which is not there"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return f"links to {address}, where there is no such anchor"
    return None


def problems(site: Path) -> list[str]:
    """One sentence for each; files of the theme itself are no pages."""
    paths = sorted(site.resolve().rglob("*.html"))
    pages = {path: Page(path) for path in paths if "_static" not in path.parts}
    found = []
    for path, page in pages.items():
        inside = [link for link in page.links if not elsewhere(link)]
        local = [address for address in page.loads if not elsewhere(address)]
        said = [problem_of_link(path, address, pages) for address in inside + local]
        said += [f"loads {address}" for address in page.loads if elsewhere(address)]
        found += [f"{path.relative_to(site.resolve())} {text}" for text in said if text]
    return found if pages else [f"{site} has no page"]


if __name__ == "__main__":
    found = problems(Path(sys.argv[1]))
    print("\n".join(found) if found else "no dead link, and nothing is loaded from elsewhere")
    sys.exit(bool(found))
