"""What reading a folder and explaining a deployment go by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Bounds for telling what changed and where; what is not derived was measured by benchmarks/deployments.py, part edits."""

    not_linear: float = 0.03  # share of a deviation that the Jacobian cannot explain, for changes of some percent
    tokens: int = 1000  # of the sequences that are looked at for the place: kernels are (tokens, tokens)
    odds: float = 3.0  # nats, 20 to 1: one layer is named only where it is that much likelier than several, and foretells as much
    likely: float = 6.0  # nats: other hypotheses this close to the best are named too
    far: float = 1000.0  # energies farther apart are of different changes: a factor of 30 in size, where directions differ
    loud: float = 100.0  # energy of deviations over rounding, beyond which our own rounding is a percent of it at most
    fit_work: float = 1e12  # multiplications that a fit of low rank may cost, roughly half a minute on one core
    mostly: float = 0.9  # share of the deviations that a trial must explain to be named though it does not explain all
    swaps: int = 12  # layers up to which every pair is tried for being swapped; of more, neighbours only
    ranks: tuple[int, ...] = (1, 2, 4, 8)  # of updates that are fitted
    fits: float = 0.95  # share of held-out deviations that an update of low rank must explain
    better: float = 0.5  # of what an update of any rank leaves: where tokens span few directions, every change looks of low rank
    draws: int = 8  # rehearsals of each rule, whose spread is what a finding must exceed
    rehearsed: int = 32  # calls that rehearsals look at: the spread from draw to draw limits them, not the number of answers
    shares: tuple[float, ...] = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7)  # of weights gone, between which the share is found
    in_common: float = 0.7  # correlation with the checkpoint's answers: half of what varies in an answer is foretold by it
    unlike: float = 4.0  # spreads of shuffled weights' correlations, beyond which the checkpoint's own is no chance
    absurd: int = 8  # times as many layers as the files hold: nothing shares weights so widely, and building them takes for ever
    tables: tuple[str, ...] = ("embed_tokens.weight", "word_embeddings.weight", "wte.weight")  # of tokens, (words, width)
    factored: tuple[str, ...] = ("embedding_size", "word_embed_proj_dim")  # of models whose table is narrower than their tokens
    depths: tuple[str, ...] = ("num_hidden_layers", "n_layer", "num_layers")


SETTINGS = Settings()
