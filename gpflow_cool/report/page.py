"""Parts of an HTML page that needs no other file and no network."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parent

SCRIPTS = ("predictor.js", "charts.js", "panel.js", "report.js")


def whole_page(title: str, head: str, sections: Sequence[str], foot: str, data: Any) -> str:
    """
    A page with its style, its data and its scripts.

    The browser is told to load nothing and to run these scripts alone.

    :param title: Text. The rest is HTML.
    :param data: What the scripts work with, as plain data.
    """
    name = html.escape(title)
    script = "\n".join((FOLDER / file).read_text(encoding="utf-8") for file in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline';"
        f" script-src 'sha256-{digest}'"
    )
    style = (FOLDER / "report.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{name}: Cool-MTGP report</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{name}</h1><p>{head}</p></header>\n{contents(sections)}\n<main>\n"
        + "\n".join(sections)
        + f"\n</main>\n<footer>{foot}</footer>\n"
        f'<script type="application/json" id="data">{embedded_json(data)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def embedded_json(data: Any) -> str:
    """
    Plain data that may stand between the tags of a script; NaN becomes null.

    >>> print(embedded_json({"</script>": float("nan")}))
    {"\\u003c/script\\u003e":null}
    """
    text = json.dumps(without_nan(data), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def without_nan(data: Any) -> Any:
    """Plain data with None for numbers that are not finite."""
    if isinstance(data, Mapping):
        return {key: without_nan(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [without_nan(value) for value in data]
    return None if isinstance(data, float) and not np.isfinite(data) else data


def section(label: str, heading: str, text: str, content: str) -> str:
    """
    A box with a heading.

    :param label: One or two words for the list of contents.
    :param text: HTML, as the content is.
    """
    paragraph = f"<p>{text}</p>" if text else ""
    place = label.lower().replace(" ", "-")
    return f'<section id="about-{place}"><h2>{heading}</h2>{paragraph}{content}</section>'


def contents(sections: Sequence[str]) -> str:
    """Links to the sections."""
    places = re.findall('<section id="about-([^"]+)">', "\n".join(sections))
    links = (
        f'<a href="#about-{place}">{place.replace("-", " ").capitalize()}</a>' for place in places
    )
    return f'<nav aria-label="Contents">{"".join(links)}</nav>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are text. Columns of words are aligned to the left."""
    body = [[str(cell) for cell in row] for row in rows]
    columns = zip(*body, strict=True) if body else [()] * len(head)
    kinds = ["" if all(map(is_number, column)) else ' class="text"' for column in columns]

    def line(tag: str, cells: Sequence[str]) -> str:
        parts = zip(kinds, cells, strict=True)
        return "".join(f"<{tag}{kind}>{html.escape(cell)}</{tag}>" for kind, cell in parts)

    lines = "".join(f"<tr>{line('td', row)}</tr>" for row in body)
    inside = f"<thead><tr>{line('th', head)}</tr></thead><tbody>{lines}</tbody>"
    return f'<div class="scroll"><table>{inside}</table></div>'


def is_number(cell: str) -> bool:
    """
    Whether a cell holds a number, a date or nothing.

    >>> is_number("−1.5e+04"), is_number("20.0%"), is_number("–"), is_number("3 days")
    (True, True, True, True)
    >>> is_number("rain")
    False
    """
    return (
        re.fullmatch(r"[−–\d.,e+:% -]*( days|constant, not used)?|constant, not used", cell)
        is not None
    )


def column_rows(names: Sequence[str], values: Any) -> list[list[str]]:
    """One row per column of numbers: smallest, mean, largest and standard deviation; no NaN."""
    statistics = [f(values, axis=0) for f in (np.nanmin, np.nanmean, np.nanmax, np.nanstd)]
    return [[name, *map(number, cells)] for name, *cells in zip(names, *statistics, strict=True)]


def lengthscale(value: float) -> str:
    return "constant, not used" if np.isinf(value) else number(value)


def number(value: float) -> str:
    """
    A number with four digits.

    >>> number(0.123456), number(-12345.6), number(float("nan"))
    ('0.1235', '−1.235e+04', '–')
    """
    return "–" if np.isnan(value) else f"{value:.4g}".replace("-", "−", 1)


def count(number: int, what: str) -> str:
    """
    >>> count(1, "input"), count(3, "input")
    ('1 input', '3 inputs')
    """
    return f"{number} {what}" + ("" if number == 1 else "s")


def new_figure(size: tuple[float, float], layout: Any = "constrained") -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout=layout)


def embed(figure: "Figure", text: str) -> str:
    """A figure as part of the page, with a text for those who cannot see it."""
    buffer = BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    data = base64.b64encode(buffer.getvalue()).decode()
    alt = html.escape(text, quote=True)
    return f'<figure><img alt="{alt}" src="data:image/svg+xml;base64,{data}"></figure>'
