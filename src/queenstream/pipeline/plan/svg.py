"""A graph as an SVG picture: boxes in layers from top to bottom, drawn without any library.

A box lies one layer below the lowest of its inputs. Within a layer the boxes stand near what feeds them. A
line that passes layers bends around their boxes: it has a place of its own in each.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Look: TypeAlias = Literal["end", "state", "step"]

_WIDTH, _HEIGHT = 260, 54  # of a box
_ACROSS, _DOWN = 32, 44  # between boxes
_LANE = 24  # the width of a line that passes a layer
_MARGIN, _TITLE = 24, 40
_NAME_LETTERS, _DETAIL_LETTERS = 30, 38  # that fit into a box

_STYLE = """
    .page { fill: #ffffff } .title { fill: #1f2430; font: 600 16px system-ui, sans-serif }
    .name { fill: #1f2430; font: 600 13px system-ui, sans-serif }
    .detail { fill: #5b6472; font: 11px system-ui, sans-serif }
    .box { stroke-width: 1.5 } .line { stroke: #8a93a3; stroke-width: 1.5; fill: none } .tip { fill: #8a93a3 }
    .end { fill: #e8f1fd; stroke: #4a86d8 } .state { fill: #fdf1e0; stroke: #d8953a }
    .step { fill: #f4f5f7; stroke: #a7afbd }
    @media (prefers-color-scheme: dark) {
      .page { fill: #15181e } .title, .name { fill: #e8ebf0 } .detail { fill: #a3adbd }
      .line { stroke: #737d8f } .tip { fill: #737d8f } .end { fill: #182b45; stroke: #5b93de }
      .state { fill: #3a2a14; stroke: #d19a4c } .step { fill: #22262e; stroke: #606a7b }
    }
"""


@dataclass(frozen=True)
class Box:
    """One box: its name, a line below it, how it looks, and the names of the boxes that feed it."""

    name: str
    detail: str
    look: Look
    inputs: tuple[str, ...]


@dataclass
class _Spot:
    """A place in a layer: of a box, or of a line on its way (then it has no box)."""

    box: Box | None
    above: list[_Spot]
    x: float = 0
    layer: int = 0

    @property
    def width(self) -> int:
        return _WIDTH if self.box else _LANE

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def top(self) -> int:
        return _MARGIN + _TITLE + self.layer * (_HEIGHT + _DOWN)


def draw(title: str, boxes: Sequence[Box]) -> str:
    """The picture; ``boxes`` come after those that feed them.

    >>> draw("two", [Box("a", "", "end", ()), Box("b", "", "end", ("a",))]).count("<rect class='box")
    2
    """
    layers = _layers(boxes)
    width = _place(layers)
    height = _MARGIN * 2 + _TITLE + len(layers) * (_HEIGHT + _DOWN) - _DOWN
    spots = [spot for layer in layers for spot in layer]
    lines = [_line(above, spot) for spot in spots for above in spot.above]
    passing = [_through(spot) for spot in spots if spot.box is None]
    drawn = [_box(spot, spot.box) for spot in spots if spot.box is not None]
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height}' "
        f"viewBox='0 0 {width:.0f} {height}' role='img' aria-label='{_text(title)}'>"
    )
    tip = "<path class='tip' d='M0,0 L8,4 L0,8 z'/>"
    marker = (
        f"<marker id='tip' markerWidth='8' markerHeight='8' refX='7' refY='4' orient='auto'>{tip}</marker>"
    )
    parts = [
        head,
        f"<style>{_STYLE}</style>",
        f"<defs>{marker}</defs>",
        f"<rect class='page' width='{width:.0f}' height='{height}' rx='12'/>",
        f"<text class='title' x='{_MARGIN}' y='{_MARGIN + 14}'>{_text(title)}</text>",
        *lines,
        *passing,
        *drawn,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _layers(boxes: Sequence[Box]) -> list[list[_Spot]]:
    """Every box in its layer, and a spot for every line in each layer that it passes."""
    spots: dict[str, _Spot] = {}
    layers: list[list[_Spot]] = []
    for box in boxes:
        depth = max((spots[name].layer + 1 for name in box.inputs), default=0)
        while len(layers) <= depth:
            layers.append([])
        above = [_lane(spots[name], depth, layers) for name in dict.fromkeys(box.inputs)]
        spot = _Spot(box, above, layer=depth)
        spots[box.name] = spot
        layers[depth].append(spot)
    return layers


def _lane(start: _Spot, depth: int, layers: list[list[_Spot]]) -> _Spot:
    """The spot right above layer ``depth`` on a line's way down from ``start``."""
    for layer in range(start.layer + 1, depth):
        start = _Spot(None, [start], layer=layer)
        layers[layer].append(start)
    return start


def _place(layers: list[list[_Spot]]) -> float:
    """Give every spot its ``x``; the width of the whole."""
    widths = [sum(spot.width for spot in layer) + _ACROSS * (len(layer) - 1) for layer in layers]
    total = max(widths, default=0) + 2 * _MARGIN
    for layer, width in zip(layers, widths, strict=True):
        # Stable, so that boxes with the same inputs stay in the user's order.
        layer.sort(key=lambda spot: _centre(spot.above) if spot.above else 0)
        x = (total - width) / 2
        for spot in layer:
            spot.x = x
            x += spot.width + _ACROSS
    return total


def _centre(spots: list[_Spot]) -> float:
    return sum(spot.middle for spot in spots) / len(spots)


def _line(above: _Spot, spot: _Spot) -> str:
    start, end = above.top + _HEIGHT, spot.top
    bend = (start + end) / 2
    tip = " marker-end='url(#tip)'" if spot.box else ""
    down = f"{above.middle:.1f},{bend:.1f} {spot.middle:.1f},{bend:.1f} {spot.middle:.1f},{end}"
    path = f"M{above.middle:.1f},{start} C{down}"
    return f"<path class='line' d='{path}'{tip}/>"


def _through(spot: _Spot) -> str:
    """A line on its way past a layer's boxes."""
    return f"<path class='line' d='M{spot.middle:.1f},{spot.top} V{spot.top + _HEIGHT}'/>"


def _box(spot: _Spot, box: Box) -> str:
    at = f"x='{spot.x:.1f}' y='{spot.top}'"
    text = f"x='{spot.x + 14:.1f}'"
    return (
        f"<g><title>{_text(box.name)}: {_text(box.detail)}</title>"
        f"<rect class='box {box.look}' {at} width='{_WIDTH}' height='{_HEIGHT}' rx='8'/>"
        f"<text class='name' {text} y='{spot.top + 22}'>{_text(_cut(box.name, _NAME_LETTERS))}</text>"
        f"<text class='detail' {text} y='{spot.top + 40}'>{_text(_cut(box.detail, _DETAIL_LETTERS))}</text>"
        "</g>"
    )


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def _text(text: str) -> str:
    """Safe inside a tag and inside an attribute; what XML cannot hold is shown as a question mark."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text)
    return html.escape(clean)
