"""The decoder as a model of transformers, and encodings inside models of transformers.

This module requires `transformers`, as `gguf.py` does.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutputWithPast

from pe_bench.decoder.cache import Cache
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError
from pe_bench.pretrained.checkpoint import Checkpoint
from pe_bench.pretrained.llama_config import OWN, make_config, parse_config
from pe_bench.pretrained.saving import CODE, MODELING
from pe_bench.pretrained.weights import make_empty, share
from pe_bench.registry import plugins
from pe_bench.system.files import write_atomic

NOT_SUPPORTED = ("inputs_embeds", "output_attentions", "output_hidden_states")
"""Arguments of a Llama that are refused."""

SPARE = 256
"""Additional capacity of a new cache, in tokens."""


def wrap(llama: Any, spec: str) -> "PeBenchForCausalLM":
    """Implement `pe_bench.put_encoding`."""
    config = parse_config(llama.config.to_dict())
    if llama.get_output_embeddings().weight is not llama.get_input_embeddings().weight:
        config = replace(config, model=replace(config.model, tied_embeddings=False))
    plugin = plugins.load("encoding", Checkpoint(Path(), config).spec(spec))
    decoder = make_empty(config.model, plugin.make)
    share(decoder, dict(llama.named_parameters(remove_duplicate=False)), config.names)
    decoder.encodings.to(llama.device)
    content = make_config(config.model, None, plugin.label)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "dtype"):
        content[name] = getattr(llama.config, name, None)
    model = PeBenchForCausalLM(PeBenchConfig(**content), decoder)
    model.train(llama.training)
    return model


class PeBenchConfig(transformers.PreTrainedConfig):  # type: ignore[misc]  # has no types
    """config.json of a decoder with an encoding; the fields have the same names as Llama's.

    Attributes:
        encoding_spec: spec of an encoding in your own file; None: that of the config.
    """

    model_type = OWN
    encoding_spec: str | None = None

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "") -> None:
        """Do nothing: transformers would copy this file into folders that it saves."""


class PeBenchForCausalLM(transformers.PreTrainedModel, transformers.GenerationMixin):  # type: ignore[misc]
    """A decoder with an encoding, as a model of transformers.

    Padding is allowed on either side. `position_ids` may divide a row into documents, which do not
    attend to each other, as in transformers. Arguments without an implementation are refused.

    Args:
        config: shape of the decoder and spec of its encoding.
        decoder: the decoder; None: a new one.
    """

    config_class = PeBenchConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _tied_weights_keys = {"model.lm_head.weight": "model.embed_tokens.weight"}
    _keep_in_fp32_modules_strict = ["encodings"]

    def __init__(self, config: PeBenchConfig, decoder: Decoder | None = None) -> None:
        super().__init__(config)
        if decoder is None:
            parsed = parse_config(config.to_dict())
            spec = config.encoding_spec or Checkpoint(Path(), parsed).encoding
            plugin = plugins.load("encoding", spec)
            decoder = make_empty(parsed.model, plugin.make)
            if torch.get_default_device().type != "meta":
                decoder = Decoder(parsed.model, plugin.make)
        self.model = decoder
        self.post_init()

    def get_input_embeddings(self) -> Any:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> Any:
        return self.model.lm_head

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "") -> None:
        """Do nothing: transformers would copy this file into folders that it saves."""

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse to change the vocabulary.

        Raises:
            InputError: always.
        """
        raise InputError("the vocabulary cannot be resized here: resize the Llama before")

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any = None) -> None:
        """Compute each block again in the backward pass; the arguments make no difference."""
        self.model.recompute = True

    def gradient_checkpointing_disable(self) -> None:
        """Keep all activations for the backward pass."""
        self.model.recompute = False

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether the backward pass computes each block again."""
        return self.model.recompute

    def _init_weights(self, module: Any) -> None:
        """Do nothing: the decoder has initialised its weights."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: "DecoderCache | None" = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits (B, T, vocab_size), and the loss where there are labels.

        Args:
            input_ids: (B, T); with a cache only new tokens.
            attention_mask: (B, tokens so far), 0 at padding.
            position_ids: (B or 1, T). Without a mask and a cache, a new document begins where they
                do not grow by one.
            past_key_values: cache from an earlier call.
            labels: (B, T), -100 at tokens without a loss.
            use_cache: whether to return a cache.
            logits_to_keep: number of last tokens to return logits for, or their indices; 0: all.

        Raises:
            InputError: an argument that is not supported.
        """
        for name in NOT_SUPPORTED:
            value = kwargs.get(name, getattr(self.config, name, None))
            if value is not None and value is not False:
                raise InputError(f"a decoder with an encoding has no {name}: leave it out")
        if input_ids is None:
            raise InputError("input_ids are missing: the encoding may need them")
        if use_cache and past_key_values is None:
            past_key_values = DecoderCache()
        if past_key_values is not None and past_key_values.seen:
            past_key_values.check_positions(position_ids)
            hidden = past_key_values.go_on(self.model, input_ids)  # (B, T, C)
        else:
            padding = _left_padding(input_ids, attention_mask)  # (B,)
            given = _other_positions(position_ids, input_ids, attention_mask, padding)
            if given is not None and past_key_values is not None:
                raise InputError("position_ids with a cache are 0, 1, 2, ... behind the padding")
            if given is not None and attention_mask is None:
                hidden = _hidden_of_documents(self.model, input_ids, given)  # (B, T, C)
            else:
                tokens = _shift(input_ids, padding)  # (B, T)
                if past_key_values is not None:
                    hidden = past_key_values.start(self.model, tokens, padding)  # (B, T, C)
                else:
                    lengths = (tokens.shape[1] - padding).cpu()  # (B,)
                    ids = None if given is None else _shift(given, padding)
                    hidden = self.model.hidden(tokens, None, ids, final_lengths=lengths)
                hidden = _shift(hidden, -padding)  # (B, T, C)
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.model.logits(hidden[:, keep])  # (B, kept, vocab_size)
        loss = None
        if labels is not None:
            size = self.model.config.vocab_size
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load the model of a folder, as in transformers.

        Buffers that are in no file are computed again, because transformers leaves them
        uninitialised.
        """
        found = super().from_pretrained(*args, **kwargs)
        model = found[0] if isinstance(found, tuple) else found  # with output_loading_info
        decoder = model.model
        fresh = dict(make_empty(decoder.config, decoder.make_encoding).encodings.named_buffers())
        stored = decoder.encodings.state_dict()
        for name, buffer in decoder.encodings.named_buffers():
            if name not in stored:
                buffer.copy_(fresh[name])
        return found

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> None:
        """Write a folder that `AutoModelForCausalLM` loads with trust_remote_code=True."""
        super().save_pretrained(save_directory, **kwargs)
        write_atomic(Path(save_directory) / MODELING, CODE)

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        if generation_config.use_cache is not False:
            model_kwargs.setdefault("past_key_values", DecoderCache(max_cache_length + 1))


class DecoderCache(transformers.Cache):  # type: ignore[misc]
    """The cache of the decoder, as a cache of transformers.

    If outputs of the encoding depend on later tokens, it stores only the tokens.

    Args:
        longest: tokens of a finished sequence including padding; 0: unknown.
    """

    def __init__(self, longest: int = 0) -> None:
        super().__init__(layers=[])
        self.longest = longest
        self.seen = 0
        self.padding = torch.zeros(0, dtype=torch.long)
        self.tokens = torch.zeros(0, 0, dtype=torch.long)
        self.cache: Cache | None = None

    def start(self, model: Decoder, tokens: Tensor, padding: Tensor) -> Tensor:
        """Return hidden states, (B, T, C), of the first tokens (B, T), padded on the right."""
        rows, length = tokens.shape
        self.tokens, self.padding, self.seen = tokens, padding, length
        if not model.encoding.prefix_consistent:
            return self._all(model)
        final = (max(self.longest, length) - padding).cpu()
        if model.encoding.needs_final_length and not self.longest:
            raise InputError("the encoding needs to know how long the text will be: use generate")
        capacity = max(self.longest, length + SPARE)
        self.cache = Cache(rows, capacity, tokens.device, final_lengths=final)
        hidden = model.hidden(tokens, self.cache)  # (B, T, C)
        self.cache.truncate(length - padding)
        return hidden

    def check_positions(self, position_ids: Tensor | None) -> None:
        """Refuse position ids that do not continue those of the tokens in the cache.

        Raises:
            InputError: they do not.
        """
        if position_ids is None:
            return
        length = position_ids.shape[1]
        next_ids = self.seen + torch.arange(length, device=position_ids.device)  # (T,)
        if not bool((position_ids == next_ids - self.padding[:, None]).all()):
            raise InputError("position_ids have to continue those of the tokens in the cache")

    def go_on(self, model: Decoder, tokens: Tensor) -> Tensor:
        """Return hidden states, (B, T, C), of further tokens (B, T)."""
        self.seen += tokens.shape[1]
        if self.cache is None:
            together = torch.cat([_shift(self.tokens, -self.padding), tokens], dim=1)
            self.tokens = _shift(together, self.padding)  # (B, S)
            return _shift(self._all(model), -self.padding)[:, -tokens.shape[1] :]
        if self.seen > self.cache.capacity:
            self.cache.grow(2 * self.seen)
        return model.hidden(tokens, self.cache)

    def _all(self, model: Decoder) -> Tensor:
        """Return hidden states of all tokens, row by row, because they depend on the length."""
        width = self.tokens.shape[1]
        rows = []
        for row, pads in zip(self.tokens, self.padding.tolist(), strict=True):
            hidden = model.hidden(row[None, : width - pads])  # (1, t, C)
            rows.append(torch.nn.functional.pad(hidden[0], (0, 0, 0, pads)))
        return torch.stack(rows)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens, padding included."""
        return self.seen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep these rows, in this order."""
        self.padding = self.padding[beam_idx]
        self.tokens = self.tokens[beam_idx]
        if self.cache is not None:
            self.cache.select(beam_idx)


def _left_padding(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Return the number of padding tokens before each row, (B,).

    Raises:
        InputError: the mask is not (B, T), or there is padding between tokens.
    """
    if mask is None:
        return tokens.new_zeros(len(tokens))
    if mask.shape != tokens.shape:
        raise InputError(
            f"attention_mask is {tuple(mask.shape)}, and it should be {tuple(tokens.shape)}: the "
            "encoding says which keys a query may attend to"
        )
    kept = mask.bool().int()  # (B, T)
    starts = kept[:, 0] + kept.diff(dim=1).eq(1).sum(1)  # (B,)
    if bool((starts > 1).any()):
        raise InputError("attention_mask has zeros between tokens: pads belong before or behind")
    before: Tensor = kept.cummax(dim=1).values.eq(0).sum(1)  # (B,)
    return before


def _other_positions(
    position_ids: Tensor | None, tokens: Tensor, mask: Tensor | None, padding: Tensor
) -> Tensor | None:
    """Return position ids as (B, T), or None if they are 0, 1, 2, ... behind the padding (B,)."""
    if position_ids is None:
        return None
    given = position_ids.expand(tokens.shape)  # (B, T)
    usual = torch.arange(tokens.shape[1], device=tokens.device) - padding[:, None]  # (B, T)
    same = given == usual
    if mask is not None:
        same = same | ~mask.bool()
    return None if bool(same.all()) else given


def _hidden_of_documents(model: Decoder, tokens: Tensor, ids: Tensor) -> Tensor:
    """Return hidden states (B, T, C) of rows (B, T) that consist of several documents.

    Each document becomes a row. A document begins where its ids (B, T) do not grow by one.
    """
    breaks = ids.diff(dim=1, prepend=ids[:, :1] - 1).ne(1)  # (B, T)
    breaks[:, 0] = True
    document = breaks.flatten().cumsum(0) - 1  # (B T,)
    lengths = document.bincount()  # (documents,)
    starts = lengths.cumsum(0) - lengths  # (documents,)
    place = torch.arange(len(document), device=tokens.device) - starts[document]  # (B T,)
    shape = (len(lengths), int(lengths.max()))
    rows = tokens.new_zeros(shape)
    rows[document, place] = tokens.flatten()
    first = ids.flatten()[starts]  # (documents,)
    places = torch.arange(shape[1], device=tokens.device)
    own = first[:, None] + places if bool(first.any()) else None  # (documents, t)
    hidden = model.hidden(rows, None, own, final_lengths=lengths.cpu())  # (documents, t, C)
    return hidden[document, place].unflatten(0, tokens.shape)


def _shift(x: Tensor, by: Tensor) -> Tensor:
    """Roll each row to the left by a number of places: (B, T, ...) -> (B, T, ...)."""
    if not bool(by.any()):
        return x
    places = torch.arange(x.shape[1], device=x.device) + by[:, None]  # (B, T)
    rows = torch.arange(len(x), device=x.device)[:, None]
    return x[rows, places % x.shape[1]]
