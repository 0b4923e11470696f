"""All attention layers of your own model, with any encoding."""

from collections.abc import Iterator
from typing import cast

from torch import Tensor, nn

from pe_bench.config import ModelConfig
from pe_bench.decoder.attention import Backend
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.forward_pass import ForwardPass
from pe_bench.decoder.hooks import sum_extra_losses
from pe_bench.decoder.layer import AttentionLayer
from pe_bench.decoder.layer_checks import check_layers
from pe_bench.decoder.model import MakeEncoding, make_in_float32
from pe_bench.encoding import Encoding


class AttentionLayers(nn.Module):
    """The `AttentionLayer`s of a model, for any encoding.

        layers = AttentionLayers(config, load_encoding("tape"))
        forward_pass = layers.begin(tokens)  # once in each forward pass
        x = forward_pass.embed(embedding(tokens))
        for attention, mlp in zip(layers, mlps):
            x = x + attention(norm(x), forward_pass)
            mlp_in = norm(x)
            mlp_out = mlp(mlp_in)
            forward_pass.update_state(mlp_in, mlp_out)
            x = x + mlp_out
        forward_pass.end()

    The layers share an instance of the encoding if the encoding is shared between layers. They
    draw random positions once in each forward pass, as the decoder does. If a call is missing that
    the encoding needs, the next layer raises an error.

    Args:
        config: shape of the model; it has `config.layers` layers.
        make_encoding: return value of `load_encoding`, or the class of an encoding.

    Raises:
        FaultyPlugin: positions of the encoding depend on the layer, or it has both a sink and a
            replacement of the softmax.
    """

    def __init__(self, config: ModelConfig, make_encoding: MakeEncoding) -> None:
        super().__init__()
        first = make_in_float32(make_encoding, config, 0)
        self.layers = nn.ModuleList()
        for layer in range(config.layers):
            encoding = first
            if layer and not first.shared:
                encoding = make_in_float32(make_encoding, config, layer)
            self.layers.append(AttentionLayer(config, make_encoding, layer, encoding=encoding))
        kinds = [first.kind_of(layer) for layer in range(config.layers)]
        check_layers([layer.encoding for layer in self], kinds)
        # A combination of encodings is not a submodule, because each layer has its own part.
        self._combined = [first]

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer: int) -> AttentionLayer:
        return cast(AttentionLayer, self.layers[layer])

    def __iter__(self) -> Iterator[AttentionLayer]:
        return map(self.__getitem__, range(len(self)))

    @property
    def encoding(self) -> Encoding:
        """The encoding of the first layer, or the combination of several encodings."""
        return self._combined[0]

    def begin(
        self,
        tokens: Tensor,
        *,
        cache: Cache | None = None,
        position_ids: Tensor | None = None,
        final_lengths: Tensor | None = None,
        backend: Backend = "auto",
    ) -> ForwardPass:
        """Begin a forward pass.

        Padding: on the right it needs no mask, because attention is causal. Padding on the left is
        a document by itself: `position_ids` such as 0, 0, 0, 0, 1, 2, ... begin again after it.

        Args:
            tokens: (B, T) ids; with a cache only the new tokens.
            cache: tokens of earlier passes; `end` adds the new ones. Prompts of unequal length are
                padded on the right, and `cache.truncate(lengths)` after `end` drops the padding.
            position_ids: (B or 1, T). A new document begins where the position does not increase
                by one; documents do not attend to each other. None: each row is one document.
            final_lengths: length of each finished row, (B,) on the CPU, for encodings that
                declare `needs_final_length`. None: T. A cache has its own lengths.
            backend: implementation of attention.

        Raises:
            InputError: the encoding has no cache, or arguments do not fit.
        """
        return ForwardPass(
            self.encoding,
            tokens,
            cache=cache,
            position_ids=position_ids,
            final_lengths=final_lengths,
            backend=backend,
        )

    def extra_loss(self) -> Tensor | None:
        """Return the sum of the encodings' auxiliary losses after a forward, a scalar, or None.

        Raises:
            InputError: a loss is not a scalar.
        """
        return sum_extra_losses(layer.encoding for layer in self)
