"""vLLM's completions with ``prompt_embeds``: embeddings in, log-probabilities of the next token out."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from unsoftmax.errors import MissingExtraError, TargetError
from unsoftmax.models import Floats
from unsoftmax.oracles.http_transport import StatusError
from unsoftmax.oracles.served import Served, at, read_served
from unsoftmax.oracles.text import plain

WIDTH = re.compile(r"hidden_size 1 does not match the model's hidden_size (\d+)")
CHOSEN = 128  # ids that vLLM 0.32 takes in `logprob_token_ids` at most
PROMPTS = 1024  # sequences that it takes in one request at most
WHOLE = 4096  # a larger vocabulary is asked for chosen ids only


class VllmOracle(Served):
    """A model on a vLLM server that was started with ``--enable-prompt-embeds``, at ``vllm+http(s)://HOST/MODEL``.

    An answer is the log-probability of each id at the last position less that of the first one, since a softmax forgets one
    constant: differences of logits. All ids come back from a server with ``--max-logprobs -1`` and at most 4,096 words; else 128
    chosen ones.

    Args:
        url: address of the model; its name is the one under which it is served.
        ids: ids to ask for, the one to subtract first; None finds out what the server gives.
        width: token length; None asks the server, which names it when it refuses another.
        settings: further settings of ``Served``.

    Raises:
        MissingExtraError: torch, whose format the embeddings travel in, is not installed.
    """

    path = "/v1/completions"

    def __init__(self, url: str, *, ids: Sequence[int] | None = None, width: int | None = None, **settings: Any) -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingExtraError("torch", "torch") from error
        self._torch = torch
        super().__init__(read_served(url, "vllm"), width=width, **settings)
        self._sequences = min(self._sequences, PROMPTS)
        if ids is not None and not 2 <= len(ids) <= CHOSEN:
            raise ValueError(f"{len(ids)} ids were chosen; vLLM takes 2 to {CHOSEN}.")
        self._ids: list[int] | None = None if ids is None else [int(i) for i in ids]
        self._whole: int | None = None
        self._settled = ids is not None

    @property
    def ids(self) -> list[int]:
        """The ids whose log-probabilities are answers, the one that is subtracted first."""
        if not self._settled:
            self._settle()
        if self._ids is not None:
            return self._ids
        assert self._whole is not None
        return list(range(self._whole))

    def view(self, logits: Any) -> Any:
        """What this endpoint shows of a model's logits ``(batch, length, vocabulary)``: differences at the last position."""
        ids = self.ids
        if max(ids) >= logits.shape[-1]:
            raise ValueError(
                f"{self.name} answers for {max(ids) + 1} words or more, the checkpoint has {logits.shape[-1]}: other models."
            )
        if self._whole is not None and self._whole != logits.shape[-1]:
            raise ValueError(f"{self.name} has {self._whole} words, the checkpoint {logits.shape[-1]}: other models.")
        seen = logits[:, -1][:, ids]
        return seen[:, 1:] - seen[:, :1]

    def served(self) -> list[str]:
        """The names of the models on the server."""
        from unsoftmax.oracles.served import decoded

        reply = self._transport.get("/v1/models", decoded)
        return [str(at(model, "id")) for model in at(reply, "data")]

    def _asked_width(self) -> int:
        try:
            self._transport.send("POST", self.path, self._encoded(np.zeros((1, 1, 1))), self._headers, lambda *_: None)
        except StatusError as error:
            found = WIDTH.search(str(error))
            if found is not None:
                return int(found[1])
            if error.status == 404:
                raise TargetError(f"{self.name} is not served there. Models: {', '.join(map(plain, self.served()))}.") from error
            raise TargetError(
                f"{plain(error, 300)} Was the server started with --enable-prompt-embeds? With --width the width need not be asked."
            ) from error
        raise TargetError(f"{self.name} takes tokens of any width; pass --width.")

    def _settle(self) -> None:
        """Find out by one question whether the server gives all log-probabilities, or chosen ones only."""
        question = np.zeros((1, 1, self.width))
        self._settled = True
        try:
            reply = self._send(question, {"logprobs": -1})
            words = len(at(reply, "choices", 0, "logprobs", "top_logprobs", 0))
            if 1 < words <= WHOLE:
                self._whole = words
                return
            step = max(1, words // CHOSEN)
            self._ids = list(range(0, step * CHOSEN, step))
        except StatusError as error:
            if "logprobs" not in str(error):
                raise
            self._ids = list(range(CHOSEN))
        self._send(question, self._wanted())  # an older server refuses this, in words of its own

    def _send(self, piece: Floats, wanted: dict[str, Any]) -> Any:
        from unsoftmax.oracles.served import decoded

        body = self._encoded(piece, wanted)
        return self._transport.send("POST", self.path, body, self._headers, lambda reply, _: decoded(reply), questions=len(piece))

    def _encoded(self, piece: Floats, wanted: dict[str, Any] | None = None) -> bytes:
        import msgspec

        return msgspec.json.encode({**self._prompt(piece), **(wanted or {"logprobs": 1})})

    def _wanted(self) -> dict[str, Any]:
        return {"logprobs": -1} if self._ids is None else {"logprobs": 1, "logprob_token_ids": self._ids}

    def _prompt(self, piece: Floats) -> dict[str, Any]:
        return {
            "model": self.address.model,
            "prompt_embeds": [self._packed(sequence) for sequence in piece],
            "max_tokens": 1,
            "temperature": 0,
            "return_tokens_as_token_ids": True,
        }

    def _packed(self, sequence: Floats) -> str:
        """One sequence as vLLM wants it: a tensor as ``torch.save`` writes it, in base64."""
        buffer = io.BytesIO()
        self._torch.save(self._torch.tensor(sequence, dtype=self._torch.float32), buffer)
        return base64.b64encode(buffer.getvalue()).decode("ascii")

    def _body(self, piece: Floats) -> Any:
        if not self._settled:
            self._settle()
        return {**self._prompt(piece), **self._wanted()}

    def _read(self, reply: Any, piece: Floats) -> Any:
        choices = sorted(at(reply, "choices"), key=lambda choice: int(at(choice, "index")))
        if len(choices) != len(piece):
            raise TargetError(f"{len(piece)} sequences were sent and {len(choices)} answers came back.")
        names = [f"token_id:{i}" for i in self.ids]
        rows = []
        for choice in choices:
            told = at(choice, "logprobs", "top_logprobs", 0)
            try:
                rows.append([float(told[name]) for name in names])
            except (KeyError, TypeError) as error:
                raise TargetError(
                    f"The reply lacks the log-probability of {error}; start the server with --max-logprobs -1."
                ) from error
        table = np.asarray(rows)
        return table[:, 1:] - table[:, :1]
