"""SGLang's ``/generate`` with ``input_embeds``: embeddings in, log-probabilities or hidden states out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from unsoftmax.errors import TargetError
from unsoftmax.models import Floats
from unsoftmax.oracles.served import Served, at, read_served

IDS = 128  # ids that are asked for where none are chosen


class SglangOracle(Served):
    """A model on an SGLang server that was started with ``--disable-radix-cache``, at ``sglang+http(s)://HOST/MODEL``.

    Answers are differences of log-probabilities of chosen ids at the last position, or the last hidden state (a server with
    ``--enable-return-hidden-states``). The server does not tell its width: a checkpoint or ``--width`` does.

    Args:
        url: address of the model.
        width: token length.
        answers: ``"logprobs"`` or ``"hidden"``.
        ids: ids to ask for, the one to subtract first.
        settings: further settings of ``Served``.
    """

    path = "/generate"

    def __init__(
        self,
        url: str,
        *,
        width: int | None = None,
        answers: Literal["logprobs", "hidden"] = "logprobs",
        ids: Sequence[int] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(read_served(url, "sglang"), width=width, **settings)
        if answers not in ("logprobs", "hidden"):
            raise ValueError(f"answers is {answers!r}; it must be 'logprobs' or 'hidden'.")
        self._hidden = answers == "hidden"
        self.ids = list(range(IDS)) if ids is None else [int(i) for i in ids]

    def view(self, answers: Any) -> Any:
        """What this endpoint shows of a model's answers ``(batch, length, numbers)``."""
        last = answers[:, -1]
        if self._hidden:
            return last
        kept = last[:, [i for i in self.ids if i < last.shape[-1]]]
        return kept[:, 1:] - kept[:, :1]

    def _body(self, piece: Floats) -> Any:
        body: dict[str, Any] = {
            "input_embeds": [[[float(x) for x in token] for token in sequence] for sequence in piece],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
        }
        if self._hidden:
            return {**body, "return_hidden_states": True}
        return {**body, "return_logprob": True, "token_ids_logprob": self.ids}

    def _read(self, reply: Any, piece: Floats) -> Any:
        replies = reply if isinstance(reply, list) else [reply]
        if len(replies) != len(piece):
            raise TargetError(f"{len(piece)} sequences were sent and {len(replies)} answers came back.")
        rows = np.asarray([self._hidden_state(one) if self._hidden else self._logprobs(one) for one in replies])
        return rows if self._hidden else rows[:, 1:] - rows[:, :1]

    def _logprobs(self, reply: Any) -> list[float]:
        told = {int(at(entry, 1)): at(entry, 0) for entry in at(reply, "meta_info", "output_token_ids_logprobs", 0)}
        try:
            return [float(told[i]) for i in self.ids if i in told]
        except TypeError as error:
            raise TargetError("The reply holds log-probabilities that are no numbers.") from error

    def _hidden_state(self, reply: Any) -> Any:
        state = at(reply, "meta_info", "hidden_states", 0)
        return at(state, -1) if isinstance(at(state, 0), list) else state
