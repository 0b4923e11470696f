"""A small GPT around pe-bench's attention layers: train it with any encoding, then generate.

python examples/nanogpt_like.py tape
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pe_bench

TEXT = "one two three four five six seven eight nine ten eleven twelve " * 20


class GPT(nn.Module):
    def __init__(self, config: pe_bench.ModelConfig, spec: str) -> None:
        super().__init__()
        width = config.width
        self.embedding = nn.Embedding(config.vocab_size, width)
        self.attention = pe_bench.AttentionLayers(config, pe_bench.load_encoding(spec))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * config.layers))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(config.layers)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, config.vocab_size))

    def forward(
        self, tokens: Tensor, cache: pe_bench.Cache | None = None, **given: Tensor
    ) -> Tensor:
        """Return logits, (B, T) -> (B, T, vocab_size).

        Args:
            tokens: ids; with a cache only the new ones.
            cache: tokens of earlier calls.
            given: more arguments of `AttentionLayers.begin`, such as position_ids of packed rows.
        """
        forward_pass = self.attention.begin(tokens, cache=cache, **given)
        x = forward_pass.embed(self.embedding(tokens))  # (B, T, C)
        for i, attention in enumerate(self.attention):
            x = x + attention(self.norms[2 * i](x), forward_pass)
            mlp_in = self.norms[2 * i + 1](x)
            mlp_out = self.mlps[i](mlp_in)
            forward_pass.update_state(mlp_in, mlp_out)
            x = x + mlp_out
        forward_pass.end()
        logits: Tensor = self.head(x)
        return logits

    @torch.no_grad()
    def generate(self, tokens: Tensor, new: int, use_cache: bool = True) -> Tensor:
        """Append the most likely tokens, (B, T) -> (B, T + new)."""
        rows, length = tokens.shape
        if use_cache and self.attention.encoding.prefix_consistent:
            cache = pe_bench.Cache(rows, length + new, tokens.device)
            unread = tokens
            for _ in range(new):
                unread = self(unread, cache)[:, -1:].argmax(-1)  # (B, 1)
                tokens = torch.cat([tokens, unread], dim=1)
            return tokens
        final_lengths = torch.full((rows,), length + new)
        for _ in range(new):
            logits = self(tokens, final_lengths=final_lengths)  # (B, T, vocab_size)
            tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], dim=1)
        return tokens


def train(model: GPT, data: Tensor, steps: int, length: int) -> list[float]:
    """Train on random windows of the data, (N,); return the loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(data) - length, (16, 1))
        rows = data[starts + torch.arange(length + 1)]  # (16, length + 1)
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        losses.append(loss.item())
        extra = model.attention.extra_loss()
        total = loss if extra is None else loss + extra
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    return losses


def main(spec: str, steps: int = 200) -> None:
    torch.manual_seed(0)
    config = pe_bench.ModelConfig(
        layers=2,
        heads=4,
        width=64,
        vocab_size=128,
        train_length=64,
        digit_ids=tuple(b"0123456789"),  # for encodings that find numbers or segments
        separator_ids=tuple(b" "),
    )
    model = GPT(config, spec)
    data = torch.tensor(list(TEXT.encode()))
    losses = train(model, data, steps, config.train_length)
    answer = model.eval().generate(data[None, :20], new=40)
    print(f"{spec}: loss {losses[0]:.2f} at first, {losses[-1]:.2f} at last")
    print(bytes(answer[0].tolist()).decode())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "rope")
