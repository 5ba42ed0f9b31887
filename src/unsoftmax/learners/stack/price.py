"""What a stack costs, phase by phase, as the learner asks when nothing has to be asked twice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.stack.gathered import Gathered
from unsoftmax.learners.stack.heads import places, room
from unsoftmax.learners.stack.limit import Batch, Limit
from unsoftmax.learners.stack.order import contexts
from unsoftmax.learners.stack.scores import group_size
from unsoftmax.learners.stack.settings import STACK, Settings, Sight
from unsoftmax.learners.stack.sphere import support
from unsoftmax.models import Floats
from unsoftmax.models.stack import Norm

Price = list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a stack, and what follows from them.

    Attributes:
        settings: of the learner.
        width: length of a token.
        heads: of all layers together.
        rank: of W and V of each.
        norm: of the blocks.
        sight: where every position is answered, what tokens see of each other.
    """

    settings: Settings
    width: int
    heads: int
    rank: int
    norm: Norm = "layer"
    sight: Sight | None = None

    @property
    def wanted(self) -> int:
        """Coordinates that the last tokens of the first steps take at least."""
        return self.heads + self.settings.tangents + (3 if self.norm == "layer" else 2)

    @property
    def crowd(self) -> bool:
        """Whether a crowd of last tokens serves each direction with one question."""
        fits = self.width - (self.wanted + 2) >= self.heads + 2
        return self.sight is not None and self.width >= STACK.crowd_width and self.heads <= STACK.crowd_heads and fits

    @property
    def few(self) -> bool:
        """Whether heads leave last tokens too few coordinates for a tangent each: then a few tangents serve many last tokens."""
        return self.width - self._most < self.heads + 2 and room(self.width, self.heads) >= STACK.narrowest

    @property
    def inside(self) -> int:
        """Coordinates of those tokens."""
        return room(self.width, self.heads) if self.few else self._most

    @property
    def _most(self) -> int:
        return max(6, round(self.settings.inside * self.width), self.wanted + 2 * self.crowd)

    @property
    def fit(self) -> int:
        """Questions of one fit of sigmoids, without those for last tokens alone."""
        return len(self.settings.ratios) * self.settings.readers(self.heads)

    @property
    def alone(self) -> int:
        """Questions for one last token alone: causal answers tell it beside others."""
        return int(self.sight != "causal")

    @property
    def directions(self) -> int:
        """Along which values are fitted."""
        return min(self.settings.directions(self.rank, self.heads), self.width - self.inside + 1)

    @property
    def exceeded(self) -> bool:
        """Whether those show the ranks."""
        return self.directions >= self.rank + 3

    def keys(self, outputs: int) -> int:
        """Keys of one question whose answer shows so many outputs."""
        return group_size(outputs - support(self.width), self.heads, self.settings.fill, self.rank)


def price(sizes: Sizes) -> Price:
    """Questions by phase, the check and MLPs left out."""
    heads, settings = sizes.heads, sizes.settings
    sides = 2 if settings.central else 1
    tokens = max(settings.first, settings.readers(heads)) * (1 + sizes.few)  # a first look in more coordinates, where those are few
    if sizes.few:
        tokens += sides * places(heads, settings) * STACK.few_tangents
    elif heads > 1:
        tokens += sides * (heads + settings.tangents)
    visible = min(2 * sizes.rank, sizes.width - 2)
    readers = 1 if sizes.sight is None else STACK.context_readers
    return [
        ("recognition", STACK.price + (sizes.sight is not None)),
        ("heads", (len(settings.ratios) + sizes.alone) * tokens + 2 * STACK.circle),
        *(_crowded(sizes) if sizes.crowd else _alone(sizes)),
        ("layers", 2 * contexts(heads, visible, sizes.width, readers)),
    ]


def _alone(sizes: Sizes) -> Price:
    """Values to rows, where the last position tells them; a fit more than directions, as strong scores take."""
    width, heads, rank, settings = sizes.width, sizes.heads, sizes.rank, sizes.settings
    directions, readers = sizes.directions, sizes.directions - 1
    early, late = -(-directions // sizes.keys(width - sizes.inside)), sizes.keys(width)
    answers = settings.answers(heads * min(rank, directions), heads)
    first = min(readers, -(-answers // early))
    columns = readers + first * early + (readers - first) * -(-directions // late) + max(0, answers - first * early)
    rest = width - (sizes.norm == "layer") - directions
    partners = settings.partners(heads * (rank if sizes.exceeded else width), width - support(width) - heads, heads)
    inputs = rest * partners + max(0, readers - partners) * -(-rest // late)
    keys = min(-(-settings.rows(rank, heads) // late) * late, width - 2) // late
    return [
        ("values", sizes.fit * directions),
        ("columns", columns),
        ("inputs", inputs),
        ("rows", (width + (sizes.norm == "rms") - readers) * (1 + keys)),
    ]


def _crowded(sizes: Sizes) -> Price:
    """The same where every position tells them."""
    width, heads, rank, settings = sizes.width, sizes.heads, sizes.rank, sizes.settings
    few = 2 if heads <= STACK.plane else 3
    pairs = few * (few + 1) // 2 * (1 if sizes.sight == "all" else 2) + (few + 1) * sizes.alone
    count = sizes.directions - few
    values = (few - 1) * sizes.fit + pairs + 1 + STACK.settling_questions + count
    readers = count + 1  # and the crowd's ``few``, whose scores are known by then
    early, late = sizes.keys(width - sizes.inside) + 1, sizes.keys(width) + 1
    together, met = _met(sizes, readers, few, width)
    needed = settings.answers(heads * rank, heads)
    while met.rows < needed and together.needed.any():
        together.ask(early, 1)
    random = max(0, needed - met.rows)
    together.ask(late)
    rest = width - (sizes.norm == "layer") - sizes.directions
    partners = settings.partners(heads * rank, width - support(width) - heads, heads)
    inputs = rest * -(-max(partners, readers + few) // settings.crowd)
    others = width - (sizes.norm == "layer") + 1 - readers - few
    last, rows = _met(sizes, others, readers + few, settings.rows(rank, heads, sizes.sight))
    last.ask(late)
    return [
        ("values", values),
        ("columns", met.questions + random + (readers + few) * sizes.alone),
        ("inputs", inputs),
        ("rows", rows.questions + others * sizes.alone),
    ]


@dataclass(slots=True, eq=False)
class _Counted(Limit):
    """A limit that counts instead of asking; tokens are numbers, those below ``readers`` last tokens that show all outputs."""

    readers: int = 0
    rows: int = 0

    def together(self, sequences: Floats, copies: int = 1) -> list[Batch]:
        """No answers."""
        self.questions += len(sequences)
        self.rows += int((sequences[:, self.seen(sequences.shape[1]).any(1), 0] < self.readers).sum())
        return []


def _met(sizes: Sizes, readers: int, others: int, wanted: int) -> tuple[Gathered, _Counted]:
    """Tokens of which the first ``readers`` are to see so many different ones."""
    limit = _Counted(None, sight=sizes.sight)  # type: ignore[arg-type]  # it asks nothing
    limit.readers, tokens = readers, np.arange(readers + others, dtype=np.float64)[:, None]
    wants = np.where(tokens[:, 0] < readers, min(wanted, len(tokens) - 1), 0)
    return Gathered(limit, tokens, wants, np.random.default_rng(0)), limit
