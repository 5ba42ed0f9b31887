"""A small torch model for tests of deployments: two pre-norm layers of two heads, and copies of it that were changed."""

from __future__ import annotations

import copy

import numpy as np
import torch

from unsoftmax.deployment.modules import checkpoint_of

WIDTH, HEADS, OUTPUTS = 16, 2, 12


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            self.add_module(name, torch.nn.Linear(WIDTH, WIDTH))
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (part(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj))
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        x = x + self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class Small(torch.nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.width = WIDTH
        self.layers = torch.nn.ModuleList([Layer(), Layer()])
        self.head = torch.nn.Linear(WIDTH, OUTPUTS)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.3)
            elif "norm" not in name:
                torch.nn.init.normal_(parameter, std=0.1)

    def forward(self, tokens):
        for layer in self.layers:
            tokens = layer(tokens)
        return self.head(tokens[:, -1])


def checkpoint(seed=0):
    return checkpoint_of(Small(seed).eval(), name="small", heads=HEADS)


class Endpoint:
    """The model behind an endpoint: changed, in a precision, in batches whose sizes change the last bits."""

    width = WIDTH

    def __init__(self, seed=0, change=None, dtype=torch.float32, rng=None):
        self.model = copy.deepcopy(Small(seed)).eval()
        with torch.no_grad():
            if change is not None:
                change(self.model)
        self.model.to(dtype)
        self.dtype, self.rng = dtype, rng or np.random.default_rng(0)

    @torch.no_grad()
    def __call__(self, sequences):
        order = self.rng.permutation(len(sequences))
        cuts = np.sort(self.rng.integers(1, max(2, len(sequences)), size=2))
        answers = np.empty((len(sequences), OUTPUTS))
        for part in np.split(order, cuts):
            if len(part):
                answers[part] = self.model(torch.as_tensor(sequences[part]).to(self.dtype)).double().numpy()
        return answers


def off(name, size, seed=0):
    """One tensor changed by this share of its size, in a random direction."""

    def change(model):
        tensor = dict(model.named_parameters())[name]
        direction = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed))
        tensor += size * direction * tensor.norm() / direction.norm()

    return change
