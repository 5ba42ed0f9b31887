"""Pictures of stacks and decoders: what is drawn is what the model holds, and what is not known is marked."""

import numpy as np
import pytest

from unsoftmax.models.decoder import random_decoder, random_gpt
from unsoftmax.models.stack import Stack, random_stack
from unsoftmax.report.common import plain
from unsoftmax.report.deep_figures import layer_chapters, model_picture
from unsoftmax.report.model_figures import model_figures, model_numbers
from unsoftmax.report.told import Teller

RNG = np.random.default_rng(5)
WHOLE = random_stack(5, 2, 10, 3, RNG, hidden=6)
HEADS = Stack(WHOLE.layers, WHOLE.norm, None)
LLAMA = random_decoder(2, 4, 12, 4, RNG, groups=2)
GPT = random_gpt(2, 2, 12, 3, RNG)


def told(model):
    return Teller(plain({"model": model_numbers(model)}))


@pytest.mark.parametrize("layer", [LLAMA.layers[1], GPT.layers[0]])
def test_a_profile_is_the_mean_score_of_equal_tokens_and_the_spread_of_others(layer):
    distances = np.array([0.0, 1.0, 7.0, 40.0])
    equal, spread = layer.profile(distances)
    for i, distance in enumerate(distances):
        W = layer.scores(distance)
        np.testing.assert_allclose(equal[:, i], np.trace(W, axis1=1, axis2=2), atol=1e-13)
        np.testing.assert_allclose(spread[:, i], np.linalg.norm(W, axis=(1, 2)), rtol=1e-12)


def test_what_is_not_known_is_marked_in_the_picture_and_in_words():
    ((whole,),), ((heads,),) = model_picture(told(WHOLE)), model_picture(told(HEADS))
    assert "unknown" not in whole.drawing
    assert heads.drawing.count('class="unknown"') == 1  # five blocks that are alike are drawn once
    assert "layers 1 to 5" in heads.drawing
    assert "MLP (not known, nor b, nor epsilon)" in heads.drawing
    assert "6 neurons, gelu" in whole.drawing


@pytest.mark.parametrize(("model", "rows"), [(HEADS, [2] * 5), (LLAMA, [4, 4]), (GPT, [2, 2])])
def test_every_head_has_a_card_in_the_row_of_its_layer(model, rows):
    chapters = layer_chapters(told(model), model)
    assert [len(grid.figures) for chapter in chapters for grid in chapter.grids] == rows
    assert [chapter.folded for chapter in chapters] == [False, True][: len(chapters)]
    assert len(chapters) == (2 if len(rows) > 4 else 1)
    turning = model is LLAMA
    for chapter in chapters:
        for figure in chapter.drawn:
            assert ("profile" in figure.drawing) == turning
            assert ("<image" in figure.drawing) != turning


def test_the_tables_of_a_decoder_have_their_names():
    *_, last = model_figures(told(GPT), GPT)
    assert str(last[0].caption).startswith("Unembedding U: 24 by 12")
    assert str(last[1].caption).startswith("MLP of layer 1, first")
