"""A step of its own for each row, not told: found from a few packed numbers of the row, and checked by reading the rest of it."""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.grid.reader import PackedReader
from unsoftmax.learners.grid.settings import ON_GRID
from unsoftmax.models import Floats
from unsoftmax.oracles.base import phase
from unsoftmax.probes.packed import SAFE_BITS, Integers, base_of, capacity, common_step, digits, plain_number


def read_rows(reader: PackedReader) -> tuple[Floats, Integers] | None:
    """Steps and multiples of all rows; None where a row shows no step, or where dense products do not confirm what was read.

    Three small packed numbers of a row are in ratios of whole numbers, which tell the step but for a divisor that all share. The
    rest of the row shows the divisor: digits have half as much room again as their range needs, and those of a number in units of a
    wrong step fill it. Price: about 3.5 questions a row, and as many as its other entries fill; rows that do not come out whole are
    read again, in another order, and with a larger range where most of them do not.
    """
    if reader.width < 2 * ON_GRID.smalls:
        return None  # too few entries to tell, and few questions to save
    phase(reader.oracle, "grid")
    one = reader.one_row()
    if one is None:
        return None
    step, largest = one
    steps, multiples = np.zeros(reader.width), np.zeros((reader.width, reader.width), dtype=np.int64)
    left, vain = np.arange(reader.width), 0
    for _ in range(ON_GRID.readings):
        steps[left], multiples[left] = _read(reader, left, step, largest)
        before, left = len(left), np.flatnonzero(steps == 0)
        vain += len(left) > (1 - ON_GRID.worth) * before
        if np.count_nonzero(steps) < reader.width / 2:
            largest = next((wider for wider in ON_GRID.ranges if wider > largest), largest)
        if not len(left) or vain > 1:
            break
    for _ in range(2):
        if len(left) > ON_GRID.singly * reader.width:
            return None
        steps[left], multiples[left] = _singly(reader, left, step * largest)
        phase(reader.oracle, "confirm")
        if not steps.all() or reader.confirmed(steps, multiples):
            return (steps, multiples) if steps.all() else None
        left = reader.not_confirmed(steps, multiples)
    return None


def _read(reader: PackedReader, rows: Integers, step: float, largest: int) -> tuple[Floats, Integers]:
    """Steps and multiples of some rows, whose steps are about as large as ``step``; zero for those that do not come out whole."""
    room, width = int(np.ceil(ON_GRID.room * largest)), reader.width
    base, few = base_of(room), min(capacity(room, ON_GRID.small_bits), width // ON_GRID.smalls)
    order = reader.rng.permuted(np.tile(np.arange(width), (len(rows), 1)), axis=1)
    columns = [order[:, number * few : (number + 1) * few] for number in range(ON_GRID.smalls)]
    rest = order[:, ON_GRID.smalls * few :]
    columns += np.array_split(rest, max(1, -(-rest.shape[1] // capacity(room, SAFE_BITS))), axis=1)
    sizes = [some.shape[1] for some in columns]
    phase(reader.oracle, "grid")
    top = np.full(len(rows), step * float(base) ** few / 2)
    small = np.zeros((ON_GRID.smalls, len(rows)))
    for number in range(ON_GRID.smalls):
        small[number] = reader.sized(rows, _packed(columns[number], base, width), top, top / ON_GRID.faint)
        top = np.where(small.any(axis=0), np.abs(small).max(axis=0), top)
    units = np.array([common_step(numbers, base**few // 2, ON_GRID.ratio) or 0.0 for numbers in small.T])
    good = np.flatnonzero(units)
    unit = units[good]
    keys, signs = np.eye(width)[rows[good]] / unit[:, None], np.where(reader.v < 0, -1.0, 1.0)[rows[good]]
    numbers = list(small[:, good] / unit)
    phase(reader.oracle, "entries")
    for some in columns[ON_GRID.smalls :]:
        numbers.append(reader.products(keys, _packed(some[good], base, width), float(base) ** some.shape[1] / 2) * signs)
    steps, multiples = np.zeros(len(units)), np.zeros((len(units), width), dtype=np.int64)
    for place, mine in enumerate(np.array(numbers).T):
        share, found = _whole(mine, sizes, base, largest)
        multiples[good[place], order[good[place]]] = found
        steps[good[place]] = plain_number(unit[place] / share) if share else 0.0
    return steps, multiples


def _singly(reader: PackedReader, rows: Integers, size: float) -> tuple[Floats, Integers]:
    """Steps and multiples of some rows from each of their entries, of about this size at most; zero for those of no step."""
    phase(reader.oracle, "entries")
    steps, multiples = np.zeros(len(rows)), np.zeros((len(rows), reader.width), dtype=np.int64)
    for place, row in enumerate(rows):
        top = np.full(reader.width, size)
        entries = reader.sized(np.full(reader.width, row), np.eye(reader.width), top, top / ON_GRID.faint**2)
        steps[place] = common_step(entries, fewest=1) or float(not entries.any())
        multiples[place] = np.rint(entries / steps[place]) if steps[place] else 0
    return steps, multiples


def _packed(columns: Integers, base: int, width: int) -> Floats:
    """For each row a token that packs its entries in these columns ``(rows, digits)`` into one number."""
    tokens = np.zeros((len(columns), width))
    np.put_along_axis(tokens, columns, float(base) ** np.arange(columns.shape[1]), axis=1)
    return tokens


def _whole(numbers: Floats, sizes: list[int], base: int, largest: int) -> tuple[int, Integers]:
    """By how much to multiply all numbers to make them whole, and the digits of all, ``largest`` at most.

    0 where nothing does, and where the last digit of every number is zero: all may then be the next ones, in a step too large.
    """
    allowed = ON_GRID.packed * float(base) ** np.array(sizes)
    shares = range(1, ON_GRID.shares + 1) if np.isfinite(numbers).all() else ()
    for share in shares:
        off = np.abs(share * numbers - np.rint(share * numbers))
        if (off > np.minimum(share * allowed, ON_GRID.left_over)).any():
            continue
        parts, rests = zip(*(digits(share * numbers[i], base, size) for i, size in enumerate(sizes)), strict=True)
        found = np.concatenate(parts)
        if np.abs(np.array(rests)).max() <= ON_GRID.left_over and np.abs(found).max() <= largest:
            return share if any(part[-1] for part in parts if len(part)) else 0, found
    return 0, np.zeros(sum(sizes), dtype=np.int64)
