"""Small log-log plots as SVG, without any plotting library."""

from __future__ import annotations

import html
import math
import statistics

COLOURS = ("#1f5fa8", "#c4572b", "#3b8f4e", "#7a4fa3")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 330, 300, 62, 46, 44


class Panel:
    """One pair of logarithmic axes with named series of ``(x, y)``."""

    def __init__(self, x_name, y_name):
        self.names = (x_name, y_name)
        self.series = []
        self.bands = []

    def runs(self, name, measured):
        """Several runs for each x, ``[(x, [y, …]), …]``: the median as points, a band from the least to the largest."""
        self.bands.append((len(self.series), [(x, min(ys), max(ys)) for x, ys in measured]))
        return self.points(name, [(x, statistics.median(ys)) for x, ys in measured])

    def points(self, name, values):
        self.series.append((name, list(values), True))
        return self

    def line(self, name, values):
        self.series.append((name, list(values), False))
        return self

    def draw(self, offset, down=0):
        return f'<g transform="translate({offset} {down})">{self._drawn(0)}</g>'

    def _drawn(self, offset):
        xs = [math.log10(x) for _, values, _ in self.series for x, _ in values]
        ys = [math.log10(y) for _, values, _ in self.series for _, y in values]
        ys += [math.log10(y) for _, band in self.bands for _, *ends in band for y in ends]
        (x0, x1), (y0, y1) = _padded(xs), _padded(ys)
        right, low, high = WIDTH - 12, HEIGHT - BOTTOM, TOP + 16 * len(self.series)

        def at(x, y):
            across = offset + LEFT + (math.log10(x) - x0) / (x1 - x0) * (right - LEFT)
            return across, low - (math.log10(y) - y0) / (y1 - y0) * (low - high)

        parts = [f'<rect x="{offset + LEFT}" y="{high}" width="{right - LEFT}" height="{low - high}" fill="none" stroke="#888"/>']
        for number, label in _ticks(x0, x1):
            x, _ = at(number, 10.0**y0)
            parts.append(f'<path d="M{x:.1f} {low}V{high}" stroke="#ddd"/>{_text(x, low + 15, label, "middle")}')
        for number, label in _ticks(y0, y1):
            _, y = at(10.0**x0, number)
            parts.append(f'<path d="M{offset + LEFT} {y:.1f}H{offset + right}" stroke="#ddd"/>')
            parts.append(_text(offset + LEFT - 5, y + 4, label, "end"))
        for index, band in self.bands:
            corners = [at(x, high) for x, _, high in band] + [at(x, low) for x, low, _ in reversed(band)]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
            parts.append(f'<polygon points="{path}" fill="{COLOURS[index % len(COLOURS)]}" opacity="0.18"/>')
        for index, (name, values, dots) in enumerate(self.series):
            colour = COLOURS[index % len(COLOURS)]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*value) for value in values))
            dash = "" if dots else ' stroke-dasharray="5 4"'
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>')
            if dots:
                parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in (at(*value) for value in values)]
            legend = TOP + 16 * index - 2
            parts.append(f'<path d="M{offset + LEFT} {legend}h22" stroke="{colour}" stroke-width="2"{dash}/>')
            parts.append(_text(offset + LEFT + 28, legend + 4, name))
        parts.append(_text(offset + (LEFT + right) / 2, HEIGHT - 10, self.names[0], "middle"))
        middle = (low + high) / 2
        turned = f'transform="rotate(-90 {offset + 14} {middle})"'
        parts.append(f'<text x="{offset + 14}" y="{middle}" text-anchor="middle" {turned}>{html.escape(self.names[1])}</text>')
        return "".join(parts)


def _padded(values):
    low, high = min(values), max(values)
    pad = max(0.05 * (high - low), 0.1)
    return low - pad, high + pad


def _ticks(low, high):
    """Numbers between two powers of ten, with their labels: powers alone, or some between where there are few."""
    powers = range(math.floor(low), math.floor(high) + 1)
    if high - low > 2:
        return [(10.0**k, _power(k)) for k in powers if k >= low]
    steps = (1, 1.5, 2, 3, 5, 7) if high - low < 1 else (1, 2, 5)
    numbers = [step * 10.0**k for k in powers for step in steps]
    return [(number, f"{number:g}") for number in numbers if low <= math.log10(number) <= high]


def _power(exponent):
    return f'10<tspan dy="-4" font-size="8">{exponent}</tspan>'


def _text(x, y, content, anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{content}</text>'


def figure(title, panels, columns=None):
    """All panels side by side, or so many in a row, as one SVG document."""
    columns = len(panels) if columns is None else columns
    width, height = WIDTH * columns + 20, HEIGHT * -(-len(panels) // columns)
    body = "".join(panel.draw(WIDTH * (i % columns), HEIGHT * (i // columns)) for i, panel in enumerate(panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11" role="img" aria-label="{html.escape(title)}">'
        f'<rect width="{width}" height="{height}" fill="#fff"/>'
        f'<text x="{width / 2}" y="18" text-anchor="middle" font-size="13">{html.escape(title)}</text>{body}</svg>\n'
    )
