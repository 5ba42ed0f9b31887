"""Draw the body of docs/from-examples.md, for one fixed example with two heads: `python benchmarks/sculpt_pictures.py`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.optimize import linprog

from unsoftmax.learners.from_examples.sculpt_phases import Body
from unsoftmax.learners.from_examples.sculpting import Sculpture, sculpt
from unsoftmax.models import Attention, Floats

SIZE, MARGIN = 330, 46


def example() -> tuple[Attention, Sculpture]:
    """Two heads of width 8 and norm 2, sequences of two signs vectors, 40,000 examples."""
    rng = np.random.default_rng(0)
    W = rng.normal(size=(2, 8, 8))
    W *= 2.0 / np.linalg.norm(W, axis=(1, 2), keepdims=True)
    truth = Attention(W, rng.normal(size=(2, 8, 8)) / np.sqrt(8))
    X = rng.choice([-1.0, 1.0], size=(40_000, 2, 8))
    return truth, sculpt(X, truth(X, "all"), heads=2)


def cut(polygon: list[Floats], normal: Floats, limit: float) -> list[Floats]:
    """The part of a convex polygon with ``normal · point <= limit``."""
    kept: list[Floats] = []
    for here, there in zip(polygon, polygon[1:] + polygon[:1], strict=True):
        a, b = limit - normal @ here, limit - normal @ there
        if a >= 0:
            kept.append(here)
        if (a > 0 > b) or (a < 0 < b):
            kept.append(here + (there - here) * a / (a - b))
    return kept


def deepest_point(body: Body) -> Floats:
    """The centre of the largest ball inside the body, by a linear program."""
    sizes = np.linalg.norm(body.normals, axis=1, keepdims=True)
    both = np.concatenate([np.hstack([body.normals, sizes]), np.hstack([-body.normals, sizes])])
    limits = np.concatenate([body.offsets + body.width, body.width - body.offsets])
    goal = np.zeros(both.shape[1])
    goal[-1] = -1.0
    return np.asarray(linprog(goal, A_ub=both, b_ub=limits, bounds=(None, None), method="highs").x[:-1])


def section(body: Body, origin: Floats, axes: Floats, reach: float) -> list[Floats]:
    """The body's section with the plane through ``origin`` along two unit ``axes``."""
    polygon = [np.array(corner) for corner in ((-reach, -reach), (reach, -reach), (reach, reach), (-reach, reach))]
    slopes, level = body.normals @ axes.T, body.offsets - body.normals @ origin
    for slope, middle in zip(slopes, level, strict=True):
        polygon = cut(polygon, slope, middle + body.width)
        polygon = cut(polygon, -slope, body.width - middle)
        if not polygon:
            break
    return polygon


def panel(title: str, polygon: list[Floats], dots: list[tuple[str, Floats, str]], reach: tuple[float, float], shift: int) -> str:
    def place(point: Floats) -> tuple[float, float]:
        half = (SIZE - 2 * MARGIN) / 2
        return shift + SIZE / 2 + half * point[0] / reach[0], SIZE / 2 + 8 - half * point[1] / reach[1]

    left, right = (place(np.array([sign * reach[0], 0.0]))[0] for sign in (-1.0, 1.0))
    low, high = MARGIN + 8, SIZE - MARGIN + 8
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, polygon))
    parts = [
        f'<rect x="{left:.0f}" y="{low}" width="{right - left:.0f}" height="{high - low}" fill="none" stroke="#999"/>',
        f'<text x="{shift + SIZE / 2}" y="24" text-anchor="middle" font-weight="bold">{title}</text>',
        f'<polygon points="{drawn}" fill="#1f5fa8" fill-opacity="0.25" stroke="#1f5fa8"/>',
        f'<text x="{shift + SIZE / 2}" y="{SIZE - 6}" text-anchor="middle">along Θ₁ − Θ₂ (±{reach[0]:.2g})</text>',
        f'<text transform="translate({left - 8:.0f},{SIZE / 2 + 8}) rotate(-90)" text-anchor="middle">'
        f"across (±{reach[1]:.2g})</text>",
    ]
    for name, point, colour in dots:
        x, y = place(point)
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/><text x="{x + 6:.1f}" y="{y - 6:.1f}">{name}</text>'
        )
    return "\n".join(parts)


def picture(truth: Attention, found: Sculpture) -> str:
    assert found.span is not None
    theta = truth.W.transpose(0, 2, 1).reshape(2, -1)
    along = (theta[0] - theta[1]) / np.linalg.norm(theta[0] - theta[1])
    across = np.random.default_rng(1).normal(size=64)
    across -= (across @ along) * along
    axes = np.stack([along, across / np.linalg.norm(across)])
    panels = []
    for title, body, reach, shift in (
        ("Phase 2: cut with the crude sum", found.first_body, (5.0, 2.0), 0),
        ("Phase 4: cut with the refined sum", found.body, (5.0, 2.0), SIZE),
        ("Phase 4, closer", found.body, (2.5, 0.1), 2 * SIZE),
    ):
        # drawn as wide as it takes to hold both heads, which the learner cannot know: its own slabs are narrower
        body = replace(body, width=float(np.abs(body.normals @ theta.T - body.offsets[:, None]).max()))
        origin = deepest_point(body)
        polygon = section(body, origin, axes, 40.0)
        heads = [(name, axes @ (head - origin), "#c4572b") for name, head in zip(("Θ₁", "Θ₂"), theta, strict=True)]
        inside = [np.clip(p, [-reach[0], -reach[1]], reach) for p in polygon]
        seen = [dot for dot in heads if np.all(np.abs(dot[1]) < reach)]
        panels.append(panel(title, inside, seen, reach, shift))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{3 * SIZE}" height="{SIZE}" font-family="sans-serif" font-size="12">\n'
        '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(panels) + "\n</svg>\n"
    )


def extents(found: Sculpture) -> str:
    """Bars: the body's length along the direction found and along eight random ones, by linear programs."""
    assert found.span is not None
    bars = [("found", float(found.span.extents[0])), *((f"{i + 1}", float(e)) for i, e in enumerate(found.span.elsewhere))]
    top = max(value for _, value in bars)
    parts = ['<text x="20" y="20" font-weight="bold">Phase 5: length of the body, by linear programs</text>']
    for i, (name, value) in enumerate(bars):
        height = max(130 * value / top, 1.0)
        colour = "#c4572b" if i == 0 else "#1f5fa8"
        parts.append(f'<rect x="{30 + 48 * i}" y="{170 - height:.1f}" width="30" height="{height:.1f}" fill="{colour}"/>')
        parts.append(f'<text x="{45 + 48 * i}" y="186" text-anchor="middle">{name}</text>')
        parts.append(f'<text x="{45 + 48 * i}" y="{165 - height:.1f}" text-anchor="middle">{value:.3f}</text>')
    parts.append('<text x="240" y="204" text-anchor="middle">the direction found, and eight random directions across it</text>')
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="480" height="214" font-family="sans-serif" font-size="12">\n'
        '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    truth, found = example()
    (folder / "sculpt-body.svg").write_text(picture(truth, found), encoding="utf-8")
    (folder / "sculpt-extents.svg").write_text(extents(found), encoding="utf-8")
    assert truth.V is not None
    total = truth.V.sum(axis=0)
    for name, value in (("crude", found.crude), ("refined", found.refined)):
        print(f"{name} sum: relative error {np.linalg.norm(value - total) / np.linalg.norm(total):.1e}")
    print(f"slab half-width {found.first_body.width:.3g}, then {found.body.width:.3g}; slabs {len(found.body.offsets)}")
    theta = truth.W.transpose(0, 2, 1)
    apart = (theta[0] - theta[1]).ravel() / np.linalg.norm(theta[0] - theta[1])
    assert found.span is not None
    print(f"cosine of the direction found with that between the heads: {abs(found.span.directions[0] @ apart):.5f}")
    print(f"body along it {found.span.extents[0]:.3f}, across {np.median(found.span.elsewhere):.4f}")
    print(f"average head, norm {np.linalg.norm(found.average):.2f}; error on the examples, unpolished: {found.training_error:.1e}")


if __name__ == "__main__":
    main()
