"""Pictures: ``pictures/*.txt`` become SVG in ``_pictures/`` when the pages are built.

A line of the text is a thing:

    size WIDTH HEIGHT
    box X Y WIDTH HEIGHT COLOUR words | words of a second line
    frame X Y WIDTH HEIGHT words         a dashed one around other things, its name at the top
    slots X Y COLOURS                    a row of slots, a letter each: see SLOTS; `=` joins two
    arrow X Y X Y [... X Y]              through these points
    text X Y words                       centred; `left X Y words` begins there
    note X Y words                       small and grey, centred
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config

COLOURS = {
    "blue": ("#dbe9fa", "#1f5fa8"),
    "green": ("#dcf1e1", "#2c7a44"),
    "amber": ("#fdeecb", "#a86a00"),
    "red": ("#fadcdc", "#b03030"),
    "grey": ("#eeeeee", "#777777"),
    "white": ("#ffffff", "#444444"),
}
SLOTS = {
    ".": COLOURS["white"],  # free
    "c": COLOURS["blue"],  # claimed, or just published
    "m": COLOURS["green"],  # a message
    "h": COLOURS["amber"],  # held by somebody
    "x": COLOURS["red"],  # held by a dead process
    "-": COLOURS["grey"],  # done with
}
SLOT = 36
STYLE = """
text { font-family: "DejaVu Sans", Verdana, sans-serif; font-size: 13px; fill: #222; }
.note { font-size: 11px; fill: #666; }
.line { stroke: #444; stroke-width: 1.6; fill: none; marker-end: url(#head); }
.frame { fill: none; stroke: #999; stroke-dasharray: 5 4; }
"""


def svg(source: str, title: str) -> str:
    """The picture."""
    lines = [line for line in source.splitlines() if line.strip() and not line.startswith("#")]
    size, *things = lines
    width, height = map(int, size.split()[1:])
    body = "\n".join(part for line in things for part in DRAW[line.split()[0]](line.split()[1:]))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>{escape(title)}</title>
<style>{STYLE}</style>
<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" \
orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="#444"/></marker></defs>
{body}
</svg>
"""


def _words(x: float, y: float, words: str, what: str = 'text-anchor="middle"') -> str:
    return f'<text x="{x:g}" y="{y:g}" {what}>{escape(words)}</text>'


def _rect(x: float, y: float, width: float, height: float, colours: tuple[str, str]) -> str:
    fill, stroke = colours
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" '
        f'fill="{fill}" stroke="{stroke}" stroke-width="1.4"/>'
    )


def _box(words: list[str]) -> Iterator[str]:
    x, y, width, height = map(float, words[:4])
    lines = [line.strip() for line in " ".join(words[5:]).split("|")]
    yield _rect(x, y, width, height, COLOURS[words[4]])
    for number, line in enumerate(lines):
        down = y + height / 2 + 5 + 17 * (number - (len(lines) - 1) / 2)
        yield _words(x + width / 2, down, line)


def _frame(words: list[str]) -> Iterator[str]:
    x, y, width, height = map(float, words[:4])
    yield f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" class="frame"/>'
    yield _words(x + 10, y + 18, " ".join(words[4:]), 'class="note"')


def _slots(words: list[str]) -> Iterator[str]:
    x, y = map(float, words[:2])
    place = 0
    states = words[2]
    while place < len(states):
        joined = 1
        while states[place + joined : place + joined + 1] == "=":
            joined += 1
        yield _rect(x + place * SLOT, y, joined * SLOT - 2, 40, SLOTS[states[place]])
        place += joined


def _arrow(words: list[str]) -> Iterator[str]:
    points = [f"{x},{y}" for x, y in zip(words[::2], words[1::2], strict=True)]
    yield f'<polyline points="{" ".join(points)}" class="line"/>'


def _text(what: str) -> Callable[[list[str]], Iterator[str]]:
    def draw(words: list[str]) -> Iterator[str]:
        yield _words(float(words[0]), float(words[1]), " ".join(words[2:]), what)

    return draw


DRAW: dict[str, Callable[[list[str]], Iterator[str]]] = {
    "box": _box,
    "frame": _frame,
    "slots": _slots,
    "arrow": _arrow,
    "text": _text('text-anchor="middle"'),
    "left": _text(""),
    "note": _text('text-anchor="middle" class="note"'),
}


def _draw(app: Sphinx, config: Config) -> None:
    source = Path(app.srcdir)
    target = source / "_pictures"
    target.mkdir(exist_ok=True)
    for text in sorted((source / "pictures").glob("*.txt")):
        drawn = svg(text.read_text(), text.stem)
        file = target / f"{text.stem}.svg"
        if not file.exists() or file.read_text() != drawn:
            file.write_text(drawn)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("config-inited", _draw)
    return {"parallel_read_safe": True}
