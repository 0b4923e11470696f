"""A LLaMA decoder for any encoding.

Parameters have the names and shapes of the Hugging Face Llama without its "model." prefix, so
pretrained checkpoints load without conversion. Parameters of the encoding are below "encodings.".
"""

from collections.abc import Sequence
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_bench.config import ModelConfig
from pe_bench.decoder import hooks
from pe_bench.decoder.attention import Backend
from pe_bench.decoder.block import Block, Context, run_block, run_checkpointed
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.generation import Sampling, generate
from pe_bench.decoder.layer_checks import check_layers
from pe_bench.decoder.layer_kinds import begin_positions, embed_and_prepare
from pe_bench.decoder.losses import next_token_losses
from pe_bench.decoder.norms import make_norm
from pe_bench.decoder.oom_retry import retry_in_halves
from pe_bench.decoder.pass_checks import check_evaluation, check_pass
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError

LOGITS = 2**24
"""Approximate number of logits per chunk of tokens."""

WEIGHTS = 2**28
"""Maximum number of attention weights that are returned at once, 1 GiB in float32."""


class MakeEncoding(Protocol):
    """Constructor of an encoding with its options bound."""

    def __call__(self, model: ModelConfig, layer: int) -> Encoding: ...


def make_in_float32(make_encoding: MakeEncoding, config: ModelConfig, layer: int) -> Encoding:
    """Return an encoding whose parameters and buffers are float32 or wider.

    The default dtype of torch may be narrower: transformers sets it while it loads a model.

    Raises:
        InputError: `make_encoding` is a name.
    """
    if isinstance(make_encoding, str):
        raise InputError(
            f"'{make_encoding}' is a name: give pe_bench.load_encoding('{make_encoding}')"
        )
    default = torch.get_default_dtype()
    if default.itemsize >= 4:
        return make_encoding(config, layer)
    torch.set_default_dtype(torch.float32)
    try:
        return make_encoding(config, layer)
    finally:
        torch.set_default_dtype(default)


class Decoder(nn.Module):
    """The language model of all benchmarks.

    Args:
        config: shape of the model.
        make_encoding: called as make_encoding(config, layer) for every layer, or once if the
            encoding is shared. The other weights do not depend on the encoding: with the same
            seed all encodings start from the same model.

    Raises:
        FaultyPlugin: positions of the encoding depend on the layer, or it has both a sink and a
            replacement of the softmax.
    """

    def __init__(self, config: ModelConfig, make_encoding: MakeEncoding) -> None:
        super().__init__()
        self.config = config
        self.make_encoding = make_encoding
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(Block(config, i) for i in range(config.layers))
        self.norm = make_norm(config, config.width)
        self.lm_head = nn.Linear(config.width, config.vocab_size, bias=False)
        if config.tied_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:  # norms keep a gain of 1
                nn.init.normal_(parameter, std=config.init_std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        first = make_in_float32(make_encoding, config, 0)
        self.encodings = nn.ModuleList([first])
        if not first.shared:
            for layer in range(1, config.layers):
                self.encodings.append(make_in_float32(make_encoding, config, layer))
        layers = range(config.layers)
        check_layers([*map(self.encoding_of, layers)], [*map(first.kind_of, layers)])
        self.group_length: int | None = None
        """Tokens per group of shifted sparse attention in training; None: full attention."""
        self.recompute = False
        """Activation checkpointing in training: the backward pass computes each block again."""

    @property
    def encoding(self) -> Encoding:
        """The encoding of the first layer, which represents the encodings of all layers."""
        return cast(Encoding, self.encodings[0])

    def encoding_of(self, layer: int) -> Encoding:
        """Return the encoding of a layer: its own, or the shared one."""
        encoding = cast(Encoding, self.encodings[0 if len(self.encodings) == 1 else layer])
        return encoding.at_layer(layer)

    def extra_loss(self) -> Tensor | None:
        """Return the sum of the encodings' auxiliary losses after a forward, a scalar, or None.

        Raises:
            InputError: a loss is not a scalar.
        """
        return hooks.sum_extra_losses(map(self.encoding_of, range(self.config.layers)))

    def use_eval_sample(self, sample: int) -> None:
        """Select the frozen random draw of the encodings for evaluation."""
        for module in self.encodings.modules():
            if isinstance(module, Encoding):
                module.eval_sample = sample

    def forward(
        self,
        tokens: Tensor,
        cache: Cache | None = None,
        *,
        positions: Tensor | None = None,
        backend: Backend = "auto",
        final_lengths: Tensor | None = None,
    ) -> Tensor:
        """Return next-token logits.

        Args:
            tokens: (B, T) ids; with a cache only the new tokens.
            cache: tokens of earlier calls; this call adds the new tokens.
            positions: (B or 1, S) position ids; None: the ids of the encoding.
            backend: implementation of attention.
            final_lengths: length of each finished row, (B,) on the CPU, for encodings that
                declare `needs_final_length`. None: T. A cache has its own lengths.

        Returns:
            (B, T, vocab_size), see `logits`.

        Raises:
            InputError: a position id is too large for the encoding, an argument has the wrong
                shape, or there is a cache in training mode.
        """
        return self.logits(
            self.hidden(tokens, cache, positions, backend, final_lengths=final_lengths)
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (..., vocab_size) of hidden states (..., C).

        In evaluation they are float32 or wider at any precision of the model. bfloat16 has only
        128 numbers from 4 to 8, which would cause many ties, and ties go to the smallest id.
        """
        weight: Tensor = self.lm_head.weight
        if self.training:
            return self._scaled(self.lm_head(hidden))
        wide = torch.promote_types(weight.dtype, torch.float32)
        with torch.autocast(weight.device.type, enabled=False):
            return self._scaled(F.linear(hidden.to(wide), weight.to(wide)))

    def _scaled(self, logits: Tensor) -> Tensor:
        """Apply the factor and the cap of a pretrained model: (..., vocab_size) -> the same."""
        block = self.config.block
        if block.logit_scale != 1:
            logits = logits * block.logit_scale
        if block.logit_cap:
            logits = block.logit_cap * torch.tanh(logits / block.logit_cap)
        return logits

    def hidden(
        self,
        tokens: Tensor,
        cache: Cache | None = None,
        positions: Tensor | None = None,
        backend: Backend = "auto",
        logits: list[Tensor] | None = None,
        *,
        final_lengths: Tensor | None = None,
    ) -> Tensor:
        """Return the normalised output of the last layer, (B, T, C); arguments as in `forward`.

        Without gradients, a cache and `logits`, a batch that does not fit into memory is divided.

        Args:
            logits: list to which every layer appends its attention logits (B, H, T, S).
        """
        if torch.is_grad_enabled() or cache is not None or logits is not None:
            return self._hidden(tokens, cache, positions, backend, logits, final_lengths)

        def of_rows(rows: slice) -> Tensor:
            ids = positions if positions is None or len(positions) == 1 else positions[rows]
            lengths = None if final_lengths is None else final_lengths[rows]
            return self._hidden(tokens[rows], None, ids, backend, None, lengths)

        parts = retry_in_halves(of_rows, len(tokens))  # (b, T, C) each
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _hidden(
        self,
        tokens: Tensor,
        cache: Cache | None,
        positions: Tensor | None,
        backend: Backend,
        logits: list[Tensor] | None,
        final_lengths: Tensor | None,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        check_pass(self.encoding, tokens, cache)
        try:
            x = self.embed_tokens(tokens)  # (B, T, C)
        except IndexError:  # on the CPU
            raise InputError(
                f"tokens have ids from {tokens.min()} to {tokens.max()}, but must be 0 to "
                f"{self.config.vocab_size - 1}"
            ) from None
        if self.config.block.embedding_scale != 1:  # rounded to the dtype, as in transformers
            x = x * x.new_tensor(self.config.block.embedding_scale)
        of_kinds = begin_positions(self.encoding, tokens, cache, positions, final_lengths)
        x, states = embed_and_prepare(self.encoding, x, of_kinds)  # (B, T, C)
        group_length = self.group_length if self.training else None
        contexts = [Context(one, cache, backend, logits, group_length, weights) for one in of_kinds]
        recompute = self.recompute and self.training and torch.is_grad_enabled()
        run = run_checkpointed if recompute and cache is None and logits is None else run_block
        for module in self.layers:
            block = cast(Block, module)
            layer = block.self_attn.layer
            kind = self.encoding.kind_of(layer)
            x, states[kind] = run(block, x, self.encoding_of(layer), states[kind], contexts[kind])
        if cache is not None:
            cache.end(tokens.shape[1])
        normed: Tensor = self.norm(x)  # (B, T, C)
        return normed

    def attention_weights(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        final_lengths: Tensor | None = None,
    ) -> list[Tensor]:
        """Return the attention weights of every layer.

        They are those of the backend `eager`, and other backends equal them up to rounding. A row
        sums to one, or to less if the encoding has a sink or another normalisation. An encoding
        with random ids uses one draw, see `use_eval_sample`.

        Args:
            tokens: (B, T) ids.
            positions, final_lengths: as in `forward`.

        Returns:
            One tensor (B, H, T, T) per layer, float32 or wider: the weight of each key (last axis)
            for each query, 0 at keys that a query cannot attend to.

        Raises:
            InputError: the model is in training mode, the weights would be more than WEIGHTS
                numbers, or a position id is too large for the encoding.
        """
        check_evaluation(self.training, "attention weights need")
        rows, length = tokens.shape
        numbers = self.config.layers * rows * self.config.heads * length**2
        if numbers > WEIGHTS:
            raise InputError(
                f"attention weights of {rows} x {length:,} tokens in {self.config.layers} layers "
                f"of {self.config.heads} heads are {numbers:,} numbers, more than {WEIGHTS:,}: "
                "give fewer tokens"
            )
        weights: list[Tensor] = []
        self._hidden(tokens, None, positions, "auto", None, final_lengths, weights)
        return weights

    def loss(self, tokens: Tensor) -> Tensor:
        """Return the mean next-token cross-entropy in nats, a scalar; tokens (B, T)."""
        return self.token_losses(tokens[:, :-1], tokens[:, 1:]).mean()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        end: int = -1,
        sampling: Sampling | None = None,
    ) -> list[list[int]]:
        """Continue each prompt, see `pe_bench.decoder.generation.generate`.

        Args:
            prompts: token ids of each prompt, at least one.
            max_new_tokens: maximum number of new tokens per prompt.
            end: id that ends an answer, which is not returned; -1: none.
            sampling: sampling options; None: greedy decoding.
        """
        return generate(self, prompts, max_new_tokens=max_new_tokens, end=end, sampling=sampling)

    def token_losses(
        self,
        tokens: Tensor,
        targets: Tensor,
        *,
        backend: Backend = "auto",
        final_lengths: Tensor | None = None,
        scored: Tensor | None = None,
    ) -> Tensor:
        """Return the cross-entropy of targets in nats: (B, T), (B, T) -> (B, T) float32 or wider.

        Zero where the target is IGNORE. Logits are computed in chunks of tokens, about `LOGITS`
        at once, because the logits of the whole batch would be the largest tensor by far.

        Args:
            tokens: token ids.
            targets: the next ids, or IGNORE.
            backend: implementation of attention.
            final_lengths: as in `hidden`.
            scored: (N,) result of `scored_tokens`. Logits are computed only for these tokens.
                None: for all tokens. (Finding them in targets on a GPU would synchronise.)

        Raises:
            InputError: targets have another shape than tokens.
        """
        if targets.shape != tokens.shape:
            raise InputError(
                f"targets are {tuple(targets.shape)}, but must be {tuple(tokens.shape)}, as tokens"
            )
        chunk = max(4096, LOGITS // self.config.vocab_size)
        hidden = self.hidden(tokens, backend=backend, final_lengths=final_lengths).flatten(0, 1)
        ids = targets.flatten().to(hidden.device)  # (B T,)
        if scored is None or len(scored) == len(ids):
            return next_token_losses(hidden, ids, self.logits, chunk).view_as(targets)
        scored = scored.to(hidden.device)
        hidden, ids = hidden.index_select(0, scored), ids.index_select(0, scored)  # (N, C), (N,)
        losses = next_token_losses(hidden, ids, self.logits, chunk)  # (N,)
        return losses.new_zeros(targets.numel()).index_copy(0, scored, losses).view_as(targets)
