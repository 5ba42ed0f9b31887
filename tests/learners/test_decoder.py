"""Decoder language models from their logits: all heads of all layers, and what is no such decoder."""

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.errors import NotInFamilyError, TooNoisyError
from unsoftmax.learners.decoder import DecoderLearner
from unsoftmax.learners.decoder.answers import Data
from unsoftmax.learners.decoder.everywhere import asked_orders, fitted
from unsoftmax.learners.decoder.fitting import Features, varpro
from unsoftmax.learners.decoder.heads import number_of_heads
from unsoftmax.learners.decoder.limit import Limit, are_log_probabilities, read_out
from unsoftmax.learners.decoder.order import Heads, Seen, found_together
from unsoftmax.learners.decoder.rotary import find_base, keys_from_turns, queries_of, waves
from unsoftmax.learners.decoder.scores import shared_values, value_rank
from unsoftmax.learners.decoder.settings import SINGLE
from unsoftmax.learners.decoder.start import decomposed, exponentials, on_sphere
from unsoftmax.learners.decoder.together import Together, moved, parts_of, places_of
from unsoftmax.learners.decoder.weak import _unscored, weak_values
from unsoftmax.models import Decoder, Floats
from unsoftmax.models.decoder import DecoderLayer, random_decoder, random_gpt, rotated
from unsoftmax.models.llama_layout import from_llama, to_llama
from unsoftmax.models.stack import normalised
from unsoftmax.oracles import CallableOracle, Metered
from unsoftmax.oracles.base import LastPosition
from unsoftmax.precision.law import Floor


def small(
    seed: int = 0, *, layers: int = 1, heads: int = 2, groups: int | None = None, width: int = 12, log: bool = False
) -> Decoder:
    return random_decoder(layers, heads, width, 4, np.random.default_rng(seed), groups=groups, log=log)


def test_leading_zeros_are_skipped_without_a_difference() -> None:
    target, rng = small(layers=2, groups=1), np.random.default_rng(1)
    tokens = rng.normal(size=(2, 7, 12))
    tokens[0, :4] = 0  # the other sequence has no zeros, so that nothing is skipped for both
    alone = target(tokens[:1])
    assert np.abs(target(tokens)[0] - alone[0]).max() < 1e-14
    every = target(tokens, "all")
    assert np.abs(every[0, :4]).max() == 0.0
    assert np.abs(every[:, 4] - target(tokens[:, :5])).max() < 1e-14  # causal


def test_limit_answers_come_through_the_final_norm() -> None:
    target, rng = small(2, layers=2), np.random.default_rng(2)
    oracle = CallableOracle(target)
    limit = Limit(oracle, read_out(oracle, log=False))
    assert np.abs(limit.readout.table - target.unembedding).max() < 1e-15
    tokens = on_sphere(rng.normal(size=(3, 4, 12)), limit.radius)
    x = tokens[:, -1]
    told = limit.ask(tokens, 2) - limit.ask(x[:, None], 0)
    said = target.limit(tokens, 2) - target.limit(x[:, None])
    said -= x * np.sum(x * said, axis=1, keepdims=True) / 12
    assert np.abs(told - said).max() < 1e-9


def test_a_decoder_is_recovered_whole_through_the_front_door(tmp_path: object) -> None:
    target = small(3, layers=2, heads=2, groups=1, width=16)
    found = us.recover(target, seed=0, check=40)
    assert found.status.success
    assert found.facts["family"] == "decoder"
    assert (found.facts["layers"], found.facts["groups"], found.facts["rank"]) == (2, [1, 1], 4)
    assert found.facts["rotary_base"] == 10000.0
    assert isinstance(found.model, Decoder)
    assert us.distance(found.model, target) < 1e-6
    assert found.model.epsilon is not None
    assert abs(found.model.epsilon / 1e-5 - 1) < 0.01
    found.save(f"{tmp_path}/out")
    assert us.distance(us.load(f"{tmp_path}/out/weights.safetensors"), found.model) == 0.0
    with pytest.raises(ValueError, match="attention only"):
        found.model(np.zeros((1, 2, 16)))


@pytest.mark.parametrize("log", [False, True])
def test_learned_positions_and_biases_are_read_as_a_stack(log: bool) -> None:
    target = random_gpt(2, 2, 24, 6, np.random.default_rng(9), log=log)
    meter = Metered(CallableOracle(target))
    learned = DecoderLearner(places=12).run(meter, rng=np.random.default_rng(0))
    assert us.distance(learned.model, target) < 1e-7  # heads, c among them, unembedding, and twelve positions less the first
    assert isinstance(learned.model, Decoder)
    assert learned.model.positions is not None
    assert len(learned.model.positions) == 12
    assert [len(layer.heads) for layer in learned.model.layers] == [2, 2]
    assert meter.spent < 5_000


def test_a_decoder_with_learned_positions_is_saved_whole(tmp_path: object) -> None:
    target, tokens = random_gpt(2, 2, 12, 4, np.random.default_rng(3)), np.random.default_rng(4).normal(size=(2, 5, 12))
    target.save(f"{tmp_path}/gpt.safetensors")
    again = us.load(f"{tmp_path}/gpt.safetensors")
    assert isinstance(again, Decoder)
    assert np.array_equal(again(tokens), target(tokens))
    assert np.abs(target(tokens, "all")[:, 2] - target(tokens[:, :3])).max() < 1e-14  # causal
    assert np.array_equal(again.layers[1].heads[0].scores(3), again.layers[1].heads[0].scores(0))
    with pytest.raises(ValueError, match="64 positions"):
        target(np.zeros((1, 65, 12)))


def test_a_recovered_decoder_is_verified_and_another_is_not() -> None:
    target = small(3)
    found = Decoder(target.layers, target.unembedding, None)  # the attention alone, as a recovery gives it
    assert us.verify(target, found, check=20, max_length=16).matches
    other = Decoder(found.shaken(1e-5, np.random.default_rng(0)).layers, target.unembedding, None)
    assert not us.verify(target, other, check=20, max_length=16).matches


def test_the_layout_of_a_llama_is_that_of_transformers() -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    target = random_decoder(2, 4, 16, 4, np.random.default_rng(0), groups=2, vocabulary=20, hidden=24)
    state = to_llama(target)
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=4, intermediate_size=24,
        vocab_size=20, rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    missing = model.load_state_dict({name: torch.tensor(np.asarray(block)) for name, block in state.items()}, strict=False)
    assert missing.unexpected_keys == []
    assert missing.missing_keys == ["model.embed_tokens.weight"]
    tokens = np.random.default_rng(1).normal(size=(2, 7, 16))
    with torch.no_grad():
        logits = model(inputs_embeds=torch.tensor(tokens, dtype=torch.float32)).logits.numpy()
    assert np.abs(logits - target(tokens, "all")).max() < 1e-4
    again = from_llama(model.state_dict(), heads=4, epsilon=1e-5)
    assert us.distance(again, target) < 1e-6
    with pytest.raises(ValueError, match="rotary"):
        to_llama(random_gpt(1, 2, 12, 4, np.random.default_rng(0)))


def test_log_probabilities_do_as_well_at_the_price_stated() -> None:
    target = small(1, log=True)
    meter = Metered(CallableOracle(target))
    found = DecoderLearner().run(meter, rng=np.random.default_rng(0)).model
    assert us.distance(found, target) < 1e-6
    assert meter.spent <= 1.5 * sum(count for _, count in DecoderLearner().price(12, 2, 4))


def every_position(target: Decoder) -> CallableOracle:
    return CallableOracle(lambda sequences: target(sequences, "all"), width=target.width)


def test_every_position_of_a_sequence_tells_its_own_limit() -> None:
    target, rng = small(2), np.random.default_rng(5)
    oracle = every_position(target)
    limit = Limit(LastPosition(oracle), read_out(LastPosition(oracle), log=False), everywhere=oracle)
    tokens = on_sphere(rng.normal(size=(2, 9, target.width)), limit.radius)
    apart = np.stack([limit.ask(tokens[:, : i + 1], 3) for i in range(9)], axis=1)
    assert np.abs(limit.every(tokens, 3) - apart).max() < 1e-9


@pytest.mark.parametrize("log", [False, True])
def test_with_every_position_answered_a_quarter_of_the_questions_does(log: bool) -> None:
    target = small(1, log=log)
    meter = Metered(every_position(target))
    learned = DecoderLearner().run(meter, rng=np.random.default_rng(0))
    assert us.distance(learned.model, target) < 1e-9
    assert learned.evidence["left"] < 1e-10
    price = DecoderLearner().price(12, 2, 4, everywhere=True)
    assert abs(meter.spent - sum(count for _, count in price)) <= 0.15 * meter.spent  # keys that are tried again
    assert meter.spent < 0.4 * sum(count for _, count in DecoderLearner().price(12, 2, 4))


def test_the_fit_at_all_positions_mends_heads_of_a_group() -> None:
    target, rng = small(3, layers=2, heads=2, groups=1, width=16), np.random.default_rng(1)
    layers = target.layers
    assert all(isinstance(layer, DecoderLayer) for layer in layers)
    query, key, value, out = (
        np.concatenate([getattr(layer, name)[layer.group if name in ("key", "value") else slice(None)] for layer in layers])
        for name in ("query", "key", "value", "out")
    )
    root = np.sqrt(np.sqrt(query.shape[1]))
    truth = Heads(query / root, key / root, value, out, np.array([0, 0, 1, 1]), 10000.0)
    off = replace(truth, query=truth.query * (1 + 1e-5 * rng.normal(size=query.shape)), out=out + 1e-6 * rng.normal(size=out.shape))
    oracle = every_position(target)
    limit = Limit(LastPosition(oracle), read_out(LastPosition(oracle), log=False), everywhere=oracle)
    found, left = fitted(off, asked_orders(limit, off, 256, rng), limit.noise)
    assert left < 2 * limit.noise
    assert np.abs(found.V - truth.V).max() < 1e-9
    assert np.array_equal(found.key[0], found.key[1])


def test_positions_of_a_table_come_from_a_few_sequences_where_all_are_answered() -> None:
    target = random_gpt(2, 2, 24, 6, np.random.default_rng(9))
    meter = Metered(every_position(target))
    learned = DecoderLearner(places=12).run(meter, rng=np.random.default_rng(0))
    assert us.distance(learned.model, target) < 1e-7
    assert meter.phases["positions"].queries == 4 * 12  # tokens, not lengths


@pytest.mark.parametrize("kind", ["noise", "dropout", "samples"])
def test_answers_that_do_not_repeat_are_named_early(kind: str) -> None:
    target, rng = small(1), np.random.default_rng(7)

    def answer(sequences: Floats) -> Floats:
        logits = target(sequences)
        if kind == "noise":
            return logits + 1e-3 * rng.normal(size=logits.shape)
        if kind == "dropout":
            return logits * (rng.random(size=logits.shape) > 0.1)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.array([rng.multinomial(20, one / one.sum()) / 20 for one in shares])

    found = us.recover(answer, width=target.width, seed=0, on_failure="return")
    assert found.status is us.Status.TOO_NOISY
    assert "noise, dropout or sampling" in found.message
    assert found.queries <= 200


def stranger(target: Decoder, kind: str) -> Callable[[Floats], Floats]:
    def answer(sequences: Floats) -> Floats:
        hidden = sequences
        places = np.arange(hidden.shape[1], dtype=np.float64)
        for layer, mlp in zip(target.layers, target.mlps or (), strict=True):
            seen = normalised(hidden, "rms", 1e-5)
            queries, keys, values = (np.einsum("bni,hri->bhnr", seen, m) for m in (layer.query, layer.key, layer.value))
            if kind == "QK-norm":
                queries, keys = (normalised(a, "rms", 1e-6) for a in (queries, keys))
            if kind == "key bias":
                keys = keys + 0.3
            if kind != "no positions":
                queries, keys = (rotated(a, places, target.base or 0.0) for a in (queries, keys))
            scores = queries @ np.swapaxes(keys, 2, 3) / 2
            if kind == "score soft-cap":
                scores = 3 * np.tanh(scores / 3)
            seen_by = (places[None, :] <= places[:, None]) & (
                places[:, None] - places < (16 if kind == "sliding window" else np.inf)
            )
            raised = np.exp(scores) * seen_by
            weights = raised / (raised.sum(-1, keepdims=True) + (1.0 if kind == "sinks" else 0.0))
            if kind == "linear attention":
                weights = scores * seen_by / (1 + places[:, None])
            added = np.einsum("bhnr,hor->bno", weights @ values, layer.out)
            hidden = hidden + (normalised(added, "rms", 1e-5) if kind == "sandwich norms" else added)
            hidden = hidden + mlp(normalised(hidden, "rms", 1e-5)) + (0.1 if kind == "MLP bias" else 0.0)
        logits = normalised(hidden, "rms", 1e-5)[:, -1] @ target.unembedding.T
        return np.asarray(30 * np.tanh(logits / 30) if kind == "logit soft-cap" else logits)

    return answer


@pytest.mark.parametrize(
    ("kind", "words", "most"),
    [
        ("QK-norm", "QK-norm", 900),
        ("score soft-cap", "soft-cap", 900),
        ("key bias", "queries or keys have biases", 300),
        ("sinks", "attention sinks", 200),
        ("linear attention", "linear attention", 200),
        ("sliding window", "sliding window", 250),
        ("sandwich norms", "sandwich norms", 300),
        ("logit soft-cap", "logits are capped", 100),
        ("MLP bias", "biases", 200),
        ("no positions", "otary", 8_000),
    ],
)
def test_other_decoders_are_refused_by_name(kind: str, words: str, most: int) -> None:
    found = us.recover(stranger(small(4), kind), width=12, seed=0, on_failure="return")
    assert found.status is us.Status.NOT_IN_FAMILY
    assert words in found.message
    assert found.queries <= most


def test_coarse_answers_and_short_tokens_are_refused_at_once() -> None:
    oracle, rng = Metered(CallableOracle(small())), np.random.default_rng(0)
    with pytest.raises(TooNoisyError, match="rounded"):
        DecoderLearner(floor=Floor(kind="rounded", absolute=1e-3, step=2e-3)).run(oracle, rng=rng)
    with pytest.raises(TooNoisyError, match="max_norm"):
        DecoderLearner(max_norm=10.0).run(oracle, rng=rng)
    assert oracle.spent == 0
    with pytest.raises(NotInFamilyError, match="sequences of 40 tokens"):
        DecoderLearner(longest=40).run(oracle, rng=rng)
    assert oracle.spent <= 2 * 12 + 3


def test_float32_with_biases_is_refused_before_much_is_asked() -> None:
    target = random_gpt(1, 2, 12, 4, np.random.default_rng(0))
    oracle = Metered(CallableOracle(lambda sequences: target(sequences).astype(np.float32).astype(np.float64), width=12))
    with pytest.raises(TooNoisyError, match="double"):
        DecoderLearner(floor=Floor(kind="float32", relative=2.0**-22)).run(oracle, rng=np.random.default_rng(0))
    assert oracle.spent <= 2 * 12 + 3


def test_the_unembedding_behind_a_wide_layer_norm_is_read() -> None:
    table = np.random.default_rng(0).normal(size=(520, 512))
    readout = read_out(CallableOracle(lambda X: normalised(X[:, -1], "layer", 1e-5) @ table.T, width=512), log=False)
    assert np.abs(readout.table - (table - table.mean(axis=1, keepdims=True))).max() < 1e-13


def test_an_unembedding_that_hides_the_state_is_refused() -> None:
    target = random_decoder(1, 1, 12, 4, np.random.default_rng(0), vocabulary=8)
    with pytest.raises(NotInFamilyError, match="only 8"):
        read_out(CallableOracle(target), log=False)


def test_the_start_of_a_product_design_is_exact_for_exponentials() -> None:
    rng = np.random.default_rng(5)
    b, A = rng.normal(size=(3, 5)), rng.normal(size=(3, 6))
    y, w = on_sphere(rng.normal(size=(9, 3)), 1.0), on_sphere(rng.normal(size=(3, 2)), 0.5)
    points = np.concatenate([np.repeat(y, 3, axis=0), np.tile(w, (9, 1))], axis=1)
    answers = np.exp(points @ b.T) @ A
    assert number_of_heads(np.asarray(np.linalg.svd(answers, compute_uv=False), dtype=np.float64))[0] == 3
    start = decomposed(answers.reshape(9, 3, 6), 3, y, w, rng)
    assert start is not None
    assert exponentials(points, answers, start + 0.01).residual < 1e-11


def test_the_base_is_found_from_curves_alone() -> None:
    rng = np.random.default_rng(6)
    offsets = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 11, 16, 24, 36, 54, 80, 110])
    scores = rng.normal(size=(5, 6)) @ waves(offsets, 6, 500_000.0).T
    assert find_base(offsets, scores, np.full(scores.shape, 1e-9), 6)[0] == 500_000.0
    odd = rng.normal(size=(5, 6)) @ waves(offsets, 6, 12_345.67).T
    assert abs(find_base(offsets, odd, np.full(odd.shape, 1e-9), 6)[0] / 12_345.67 - 1) < 1e-5


def test_keys_at_anchors_come_from_rotations_without_a_search() -> None:
    rng, rank, offsets = np.random.default_rng(7), 6, np.array([1.0, 2, 4, 12, 40, 110])
    key, query = rng.normal(size=(rank, 9)), rng.normal(size=(2, rank, 8))
    turned = np.stack(
        [rotated(np.moveaxis(query, 1, 2), np.array(n), 500.0) for n in offsets], axis=2
    )  # (heads, queries, offsets, rank)
    scores = np.einsum("ra,hcnr->acnh", key, turned)
    errors = np.full(scores.shape, 1e-6)
    errors[2, 3, 1], scores[2, 3, 1] = np.inf, 77.0  # one could not be read
    beside = [np.concatenate(list(np.moveaxis(a, 3, 0)), axis=1) for a in (scores, errors)]
    found = queries_of(keys_from_turns(beside[0], beside[1], offsets, rank, 500.0), scores, errors, offsets, 500.0)
    assert found.left < 1e-9
    for frequency in range(3):  # one complex number for each is free
        a, b = (k[frequency] + 1j * k[frequency + 3] for k in (key, found.key))
        assert abs(abs(np.vdot(a, b)) / (np.linalg.norm(a) * np.linalg.norm(b)) - 1) < 1e-9


def test_a_float32_llama_of_transformers_is_recovered_with_bars_that_hold() -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    truth = random_decoder(1, 2, 16, 4, np.random.default_rng(0), vocabulary=40, hidden=24)
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=4, intermediate_size=24,
        vocab_size=40, rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    model.load_state_dict({name: torch.tensor(np.asarray(block)) for name, block in to_llama(truth).items()}, strict=False)
    found = us.recover(model, seed=0, check=40)
    assert found.status is us.Status.WITHIN_TOLERANCE
    assert found.facts["family"] == "decoder"
    assert isinstance(found.model, Decoder)
    assert found.bounds is not None
    assert np.abs(found.model.unembedding - truth.unembedding).max() < 1e-6
    mine, true = found.model.layers[0], truth.layers[0]
    match = [int(np.argmin([np.linalg.norm(a - b) for b in true.V])) for a in mine.V]
    for own, other, bar in (
        (mine.V, true.V[match], found.bounds.V),
        *((mine.scores(n), true.scores(n)[match], found.bounds.W) for n in (0, 5, 100)),
    ):
        assert bar is not None
        assert np.mean(np.abs(own - other) <= bar) > 0.85
        assert np.linalg.norm(own - other) < 1e-3 * np.linalg.norm(other)


def test_a_decoder_behind_vllm_is_read_from_its_kept_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "peers"))
    peer = importlib.import_module("recover_vllm")
    kept = np.load(peer.KEPT)
    told = peer.Told(kept["names"], kept["answers"])
    heads, table, values = peer.errors(peer.model_folder(tmp_path), *peer.learned(told))
    assert heads == 2
    assert table < 1e-6
    assert values < 1e-2
    assert told.spent == len(kept["names"])


def test_products_with_the_derivatives_of_the_last_fit_are_right() -> None:
    layer, rng = small(5, heads=4, groups=2).layers[0], np.random.default_rng(0)
    heads = Heads(layer.query / 2, layer.key[layer.group], layer.value[layer.group], layer.out, layer.group, layer.base)
    x = np.repeat(on_sphere(rng.normal(size=(3, 12)), np.sqrt(12.0)), 4, axis=0)
    p = on_sphere(rng.normal(size=x.shape), np.sqrt(12.0))
    lengths = np.array([1, 2, 5, 1] * 3)
    data = Data(p, x, lengths, lengths[::-1].copy(), np.arange(12.0) % 3, rng.normal(size=x.shape), 0.5)
    here, step = Together(heads, data), parts_of(heads, 1e-6 * rng.normal(size=places_of(heads).flat.size))
    there, back = (Together(moved(heads, parts_of(heads, sign * step.flat)), data) for sign in (1.0, -1.0))
    changed, rows = here.changed(step), rng.normal(size=x.shape)
    assert np.abs((back.left - there.left) / 2 - changed).max() < 1e-6 * np.abs(changed).max()
    assert here.gradient(rows).flat @ step.flat == pytest.approx(np.sum(rows * changed), rel=1e-9)


def test_a_float32_llama_with_initial_weights_is_refused_as_weak_before_much_is_asked() -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=8, intermediate_size=24,
        vocab_size=40, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    found = us.recover(transformers.LlamaForCausalLM(config).eval(), seed=0, on_failure="return")
    assert found.status is us.Status.TOO_NOISY
    assert "Scores are weak" in found.message
    assert found.queries <= 500


@pytest.mark.parametrize(("heads", "scale"), [(2, 0.03), (1, 0.1)])
def test_heads_whose_scores_are_weak_are_told_apart_by_the_ranks_of_their_values(
    heads: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[object] = []
    monkeypatch.setattr("unsoftmax.learners.decoder.learner.weak_values", lambda *asked: taken.append(asked) or weak_values(*asked))
    strong = small(4, heads=heads)
    target = replace(strong, layers=tuple(replace(layer, query=scale * layer.query) for layer in strong.layers))
    found = us.recover(target, seed=1, check=40)
    assert found.status is us.Status.EXACT
    assert us.distance(found.model, target) < 1e-8
    assert taken


def test_forms_that_vanish_nowhere_have_no_number_of_heads() -> None:
    forms = np.random.default_rng(0).normal(size=(5, 6, 6))
    with pytest.raises(NotInFamilyError, match="no number of heads"):
        _unscored(forms + forms.swapaxes(1, 2), 30.0)


@pytest.mark.parametrize("order", [(0, 0, 1, 1), (0, 1, 1, 2), (0, 0, 0, 0)])
def test_layers_that_no_head_shows_alone_are_told_together(order: tuple[int, ...]) -> None:
    rng, layers, short, epsilon = np.random.default_rng(3), np.array(order), 1e-3, 1e-5
    query, key, value = rng.normal(size=(3, 4, 2, 12)) / np.sqrt(12)
    heads = Heads(query, key, value, rng.normal(size=(4, 12, 2)), np.arange(4), 1e4)
    start = on_sphere(rng.normal(size=(1, 12)), np.sqrt(12.0))[0]
    token, told = short * start, np.zeros((4, 4))
    for layer in range(max(order) + 1):
        here, normed = layers == layer, token / np.sqrt(epsilon + np.mean(token**2))
        told[here] = np.concatenate([value[here] @ normed, key[here] @ normed], axis=1)
        token = token + np.einsum("i,hio->o", normed, heads.V[here]) / (SINGLE.order_zeros + 1)
    columns = rng.normal(size=(400, 4, 4))
    answers = np.einsum("nhc,hc->n", columns, told)
    strange = rng.normal(size=400) * np.std(answers)  # answers of nothing of the kind
    clear, lost = (
        Seen(start, told, np.array([np.eye(4)] * 4), 1.0, size * columns, size * answers + more)
        for size, more in ((300.0, rng.normal(size=400)), (300.0, 300.0 * strange))
    )
    found = found_together(heads, clear, short, SINGLE)
    assert found is not None
    assert found.layers.tolist() == list(order)
    assert found.epsilon == pytest.approx(epsilon, rel=0.3)
    assert found_together(heads, lost, short, SINGLE) is None


def test_a_llama_in_float64_whose_norms_are_float32_is_refused_with_what_to_do() -> None:
    transformers, _ = pytest.importorskip("transformers"), pytest.importorskip("torch")
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=4, intermediate_size=24,
        vocab_size=40, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    found = us.recover(transformers.LlamaForCausalLM(config).eval().double(), seed=0, on_failure="return")
    assert found.status is us.Status.TOO_NOISY
    assert "norms in float32" in found.message
    assert "model.float()" in found.message
    assert found.queries <= 150


def test_a_gpt2_of_transformers_in_float64_is_recovered_whole() -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    width, rank, rng = 16, 8, np.random.default_rng(0)
    config = transformers.GPT2Config(
        n_embd=width, n_layer=1, n_head=2, n_inner=24, vocab_size=40, n_positions=128, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).double().eval()
    with torch.no_grad():
        for weight in model.parameters():  # matrices of unit size, as a trained model has them and a fresh one has not
            weight += torch.tensor(rng.normal(size=tuple(weight.shape)) * (0.25 if weight.ndim == 2 else 0.1))
    found = us.recover(model, seed=0, check=40)
    assert found.status.success
    assert isinstance(found.model, Decoder)
    block = model.transformer.h[0]
    centre = np.eye(width) - 1 / width  # a LayerNorm sees and the next one shows no more
    gain, inside, out = (part.detach().numpy() for part in (block.ln_1.weight, block.attn.c_attn.weight, block.attn.c_proj.weight))
    value = (centre @ (gain[:, None] * inside[:, 2 * width :])).reshape(width, 2, rank)
    truth = np.einsum("ihr,hro->hio", value, out.reshape(2, rank, width) @ centre)
    apart = [
        [np.linalg.norm(centre @ head.V @ centre - V) / np.linalg.norm(V) for head in found.model.layers[0].heads] for V in truth
    ]
    assert max(map(min, apart)) < 1e-7


def test_ranks_and_groups_come_from_the_values() -> None:
    layer = small(7, heads=4, groups=2).layers[0]
    V = layer.V[[0, 2, 1, 3]]
    assert value_rank(V, 1e-5)[0] == 4
    assert [group.tolist() for group in shared_values(V, 4)] == [[0, 2], [1, 3]]
    with pytest.raises(NotInFamilyError, match="ranks"):
        value_rank(np.stack([V[0], V[1] + np.eye(12)]), 1e-5)


def test_variable_projection_finds_a_decay() -> None:
    t = np.linspace(0, 1, 20)
    answers = np.outer(np.exp(-3 * t), [1.0, -2.0])

    def model(theta: Floats) -> Features:
        column = np.exp(theta[0] * t)[:, None]
        return Features(column, 0.0, lambda A: (t[:, None] * column * A)[:, :, None])

    assert abs(varpro(model, np.array([-1.0]), answers).theta[0] + 3) < 1e-10


def test_logarithms_of_probabilities_are_told_from_logits() -> None:
    tokens = np.random.default_rng(8).normal(size=(2, 3, 12))
    assert are_log_probabilities(small(8, log=True)(tokens))
    assert not are_log_probabilities(small(8)(tokens))
