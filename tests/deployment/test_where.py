"""Which tensors changed: hypotheses compared by their likelihood, on covariances made up for the purpose."""

import numpy as np

from unsoftmax.deployment.where import Group, foretold, likeliest, telling


def made(rng, tensors=12, layers=4, count=120):
    """Kernels of random Jacobian rows, and groups: every tensor, every layer, all."""
    rows = {f"layers.{i % layers}.t{i}": rng.normal(size=(count, 300)) / 300**0.5 for i in range(tensors)}
    for part in rows.values():  # sequences show in different tensors with different strength; else all kernels would be alike
        part *= np.exp(rng.normal(size=(count, 1)))
    kernels = {name: 1e3 * part @ part.T for name, part in rows.items()}
    layer = {name: f"layer {name.split('.')[1]}" for name in rows}
    groups = [Group(name, (name,), layer[name]) for name in rows]
    groups += [Group(one, tuple(n for n in rows if layer[n] == one), one) for one in sorted(set(layer.values()))]
    return kernels, [*groups, Group("every layer", tuple(rows), None)]


def drawn(rng, kernels, sizes):
    total = sum(size * kernels[name] for name, size in sizes.items()) + np.eye(len(next(iter(kernels.values()))))
    return np.linalg.cholesky(total) @ rng.normal(size=len(total))


def test_one_tensor_is_named_and_several_layers_are_not_taken_for_one():
    rng = np.random.default_rng(0)
    right = 0
    for _ in range(6):
        kernels, groups = made(rng)
        name = list(kernels)[int(rng.integers(12))]
        right += likeliest(groups, kernels, drawn(rng, kernels, {name: 1.0})).group.name == name
        uneven = {name: float(10.0 ** rng.uniform(-1, 0)) for name in kernels}
        right += likeliest(groups, kernels, drawn(rng, kernels, uneven)).group.layer is None
    assert right == 12


def test_more_tensors_foretell_no_more_where_one_changed_and_rounding_is_larger_than_it_was_taken_for():
    rng = np.random.default_rng(1)
    kernels, _ = made(rng)
    name = next(iter(kernels))
    measured = drawn(rng, kernels, {name: 1.0}) + 3.0 * rng.normal(size=120)
    assert foretold(kernels, measured) - foretold({name: kernels[name]}, measured) < 3.0


def test_calls_are_chosen_by_what_they_tell_for_their_length():
    batches = [np.zeros((8, length, 4)) for length in (2, 24, 3, 24)]
    deviations = [np.full((8, 5), size) for size in (1.0, 1.0, 1e-3, 1e6)]
    levels = [np.full(8, 0.01)] * 4
    assert telling(batches, deviations, levels, tokens=50) == [0, 2]
    assert telling(batches, deviations, levels, tokens=250) == [0, 1, 2]
    assert telling(batches, deviations, levels, tokens=1) == [0]
