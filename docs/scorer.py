"""Train a small attention scorer: the price of the listed item that fits the last token best. Writes scorer.safetensors."""

import torch

import unsoftmax as us

WIDTH, WISH = 12, 5  # a token: what the item is (5 numbers), what is wanted (5), its price, and one number that means nothing


def listings(count: int, length: int, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Random lists, and for each the price of the item whose description is closest to the last token's wish."""
    tokens = torch.randn(count, length, WIDTH, generator=random, dtype=torch.float64)
    fit = torch.einsum("nld,nd->nl", tokens[:, :, :WISH], tokens[:, -1, WISH : 2 * WISH])
    return tokens, tokens[torch.arange(count), fit.argmax(dim=1), 2 * WISH]


def train(steps: int = 300, seed: int = 0) -> us.Attention:
    """Adam on squared errors, lists of eight."""
    random = torch.Generator().manual_seed(seed)
    W = (0.1 * torch.randn(WIDTH, WIDTH, generator=random, dtype=torch.float64)).requires_grad_()
    v = (0.1 * torch.randn(WIDTH, generator=random, dtype=torch.float64)).requires_grad_()
    optimizer = torch.optim.Adam([W, v], lr=0.03)
    for _ in range(steps):
        tokens, price = listings(256, 8, random)
        scores = torch.einsum("nld,de,ne->nl", tokens, W, tokens[:, -1])
        error = torch.einsum("nl,nld,d->n", torch.softmax(scores, dim=1), tokens, v) - price
        optimizer.zero_grad()
        (error**2).mean().backward()
        optimizer.step()
    loss = float((error.detach() ** 2).mean())
    print(f"mean squared error {loss:.3f}, where prices vary by {float(price.var()):.3f}")
    return us.Attention.single(W.detach().numpy(), v.detach().numpy())


if __name__ == "__main__":
    train().save("scorer.safetensors")
