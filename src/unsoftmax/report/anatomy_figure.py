"""A picture of a deep model: the residual stream, its blocks with their norms, what is known of each part and what is not."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from unsoftmax.report.chapter import Figure
from unsoftmax.report.svg import drawing, line, text

PartNumbers = dict[str, Any]


def anatomy_figure(anatomy: dict[str, Any]) -> Figure:
    """The picture of ``model/anatomy`` of a record; blocks that are alike are drawn once."""
    groups = _groups(anatomy["blocks"])
    body, y = _word(18.0, "tokens"), 26.0
    for part in anatomy["before"]:
        body, y = body + _plain(y, part), y + 46.0
    for first, last, parts in groups:
        body, y = body + _block(y, first, last, parts, anatomy["norm"]), y + 30.0 + 62.0 * len(parts)
    for part in anatomy["behind"][:-1]:
        body, y = body + _plain(y, part), y + 46.0
    body, y = body + _plain(y, anatomy["behind"][-1]), y + 46.0
    # the stream last but under everything: it begins below the word and ends in the last part
    stream = line(36.0, 24.0, 36.0, y - 40.0, "stream")
    caption = "What the model is made of, from tokens to answers. Solid: known. Dashed, with a question mark: not known."
    return Figure(caption, drawing(stream + body, _told(anatomy, groups), height=y, width=360.0, name="anatomy"))


def _groups(blocks: list[list[PartNumbers]]) -> list[tuple[int, int, list[PartNumbers]]]:
    """Runs of blocks that are alike: the first, the last, their parts."""
    found: list[tuple[int, int, list[PartNumbers]]] = []
    for number, parts in enumerate(blocks, start=1):
        if found and found[-1][2] == parts and len(blocks) > 3:
            found[-1] = (found[-1][0], number, parts)
        else:
            found.append((number, number, parts))
    return found


def _block(y: float, first: int, last: int, parts: list[PartNumbers], norm: str) -> Markup:
    """One block: a frame with its name, and a branch through the norm for each part."""
    height = 24.0 + 62.0 * len(parts)
    name = f"layer {first}" if first == last else f"layers {first} to {last}, each"
    body = _box(8.0, y, 346.0, height, "frame") + text(346.0, y + 15.0, name, "end")
    body += line(36.0, y, 36.0, y + height, "stream")
    for i, part in enumerate(parts):
        body += _branch(y + 22.0 + 62.0 * i, part, norm)
    return body


def _branch(y: float, part: PartNumbers, norm: str) -> Markup:
    """From the stream through the norm into a part, and what it adds back to the stream."""
    body = line(36.0, y + 12.0, 138.0, y + 12.0, "way") + line(138.0, y + 38.0, 42.0, y + 38.0, "way")
    body += Markup('<path class="way" d="M 49 {0:.1f} l -6 4 l 6 4"/>').format(y + 34.0)
    body += _box(54.0, y + 2.0, 74.0, 20.0, "norm", 10.0) + text(91.0, y + 16.0, norm)
    body += Markup('<circle class="sum" cx="36" cy="{:.1f}" r="6.5"/>').format(y + 38.0)
    body += line(32.5, y + 38.0, 39.5, y + 38.0, "stream") + line(36.0, y + 34.5, 36.0, y + 41.5, "stream")
    return body + _part(138.0, y, 208.0, 50.0, part)


def _plain(y: float, part: PartNumbers) -> Markup:
    """A part that the stream itself goes through."""
    return _part(8.0, y, 346.0, 38.0, part)


def _part(x: float, y: float, width: float, height: float, part: PartNumbers) -> Markup:
    body = _box(x, y, width, height, "known" if part["known"] else "unknown")
    middle = y + height / 2
    body += text(x + 10.0, middle - 4.0, part["name"], "start", "part")
    body += text(x + 10.0, middle + 12.0, part["words"], "start", "" if part["known"] else "open")
    return body if part["known"] else body + text(x + width - 14.0, middle - 3.0, "?", "middle", "part")


def _box(x: float, y: float, width: float, height: float, name: str, round_by: float = 6.0) -> Markup:
    form = '<rect class="{}" x="{:g}" y="{:.1f}" width="{:g}" height="{:.1f}" rx="{:g}"/>'
    return Markup(form).format(name, x, y, width, height, round_by)


def _word(y: float, words: str) -> Markup:
    return text(36.0, y, words, "middle", "part")


def _told(anatomy: dict[str, Any], groups: list[tuple[int, int, list[PartNumbers]]]) -> str:
    """The picture in words."""
    steps = [_described(part) for part in anatomy["before"]]
    for first, last, parts in groups:
        name = f"layer {first}" if first == last else f"each of the layers {first} to {last}"
        steps.append(f"{name} adds, behind {anatomy['norm']}, " + " and then ".join(_described(part) for part in parts))
    return "Tokens go through " + "; ".join([*steps, *(_described(part) for part in anatomy["behind"])]) + "."


def _described(part: PartNumbers) -> str:
    return f"{part['name']} ({part['words']})"
