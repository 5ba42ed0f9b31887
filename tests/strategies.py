"""Random models: sizes and a seed are drawn, not raw numbers, so that they shrink well and stay well posed."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from unsoftmax.models import FFN, Attention, Transformer

seeds = st.integers(0, 2**32 - 1)


@st.composite
def one_head(draw, max_width=6, rank=None, outputs=None, bias=None):
    width = draw(st.integers(1, max_width))
    rng = np.random.default_rng(draw(seeds))
    r = width if rank is None else min(rank, width)
    W = rng.normal(size=(width, r)) @ rng.normal(size=(r, width)) / width
    v = rng.normal(size=width if outputs is None else (width, outputs))
    if bias if bias is not None else draw(st.booleans()):
        return Attention.single(W, v, rng.normal(size=width), rng.normal(size=v.shape[1:]))
    return Attention.single(W, v)


@st.composite
def attention(draw, max_width=5, max_heads=3):
    heads, width = draw(st.integers(1, max_heads)), draw(st.integers(1, max_width))
    outputs = draw(st.one_of(st.none(), st.integers(1, 4)))
    rng = np.random.default_rng(draw(seeds))
    V = rng.normal(size=(heads, width) if outputs is None else (heads, width, outputs))
    c = rng.normal(size=(heads, width)) if draw(st.booleans()) else None
    b = rng.normal(size=V.shape[2:]) if draw(st.booleans()) else None
    return Attention(rng.normal(size=(heads, width, width)), V, c, b)


@st.composite
def network(draw, max_width=5):
    width, hidden, outputs = (draw(st.integers(1, max_width)) for _ in range(3))
    rng = np.random.default_rng(draw(seeds))
    skip = rng.normal(size=(outputs, width)) if draw(st.booleans()) else None
    return FFN(
        [rng.normal(size=(hidden, width)), rng.normal(size=(outputs, hidden))],
        [rng.normal(size=hidden), rng.normal(size=outputs)],
        skip,
    )


@st.composite
def transformer(draw):
    ffn = draw(network())
    rng = np.random.default_rng(draw(seeds))
    d = ffn.width
    return Transformer(Attention(rng.normal(size=(1, d, d)), rng.normal(size=(1, d, d))), ffn, residual=draw(st.booleans()))
