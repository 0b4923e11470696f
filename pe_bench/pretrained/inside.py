"""The decoder as a model of transformers, and encodings inside models of transformers.

This module and `inside_cache` require `transformers`, as `gguf.py` does.
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutputWithPast

from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError
from pe_bench.pretrained.checkpoint import Checkpoint
from pe_bench.pretrained.families import OWN
from pe_bench.pretrained.inside_cache import DecoderCache
from pe_bench.pretrained.llama_config import make_config, parse_config
from pe_bench.pretrained.rows import hidden_of_documents, left_padding, other_positions, shift
from pe_bench.pretrained.saving import CODE, MODELING, check_saved
from pe_bench.pretrained.weights import make_empty, share
from pe_bench.registry import plugins
from pe_bench.system.files import write_atomic

NOT_SUPPORTED = ("inputs_embeds", "output_attentions", "output_hidden_states")
"""Arguments of a Llama that are refused."""


def wrap(model: Any, spec: str) -> "PeBenchForCausalLM":
    """Implement `pe_bench.put_encoding`."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is None:
        raise InputError(
            f"put_encoding needs a language model of transformers, such as LlamaForCausalLM, not "
            f"{type(model).__name__}"
        )
    config = parse_config(model.config.to_dict())
    if head.weight is not model.get_input_embeddings().weight:
        config = replace(config, model=replace(config.model, tied_embeddings=False))
    checkpoint = Checkpoint(Path(), config)
    plugin = plugins.load("encoding", checkpoint.spec(spec))
    decoder = make_empty(config.model, plugin.make)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    own = checkpoint.contains(plugin)
    share(decoder, parameters, config.names, with_encoding=own)
    decoder.encodings.to(model.device)
    content = make_config(config.model, plugin)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "dtype"):
        content[name] = getattr(model.config, name, None)
    wrapped = PeBenchForCausalLM(PeBenchConfig(**content), decoder)
    wrapped.generation_config = copy.deepcopy(model.generation_config)
    wrapped.train(model.training)
    return wrapped


class PeBenchConfig(transformers.PreTrainedConfig):  # type: ignore[misc]  # has no types
    """config.json of a decoder with an encoding; the fields have the same names as Llama's.

    Attributes:
        encoding_spec: spec of an encoding in your own file; None: the spec in the config.
    """

    model_type = OWN
    encoding_spec: str | None = None

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "") -> None:
        """Do nothing: transformers would copy this file into folders that it saves."""


class PeBenchForCausalLM(transformers.PreTrainedModel, transformers.GenerationMixin):  # type: ignore[misc]
    """A decoder with an encoding, as a model of transformers.

    Padding is allowed on either side. As in transformers, `position_ids` may divide a row into
    documents that do not attend to each other. Unsupported arguments are refused.

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
            checkpoint = Checkpoint(Path(), parsed)
            plugin = plugins.load("encoding", config.encoding_spec or checkpoint.encoding)
            checkpoint.compare_code(plugin)
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
        raise InputError("the vocabulary cannot be resized here: resize that of the Llama first")

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any = None) -> None:
        """Recompute each block in the backward pass; the arguments are ignored."""
        self.model.recompute = True

    def gradient_checkpointing_disable(self) -> None:
        """Keep all activations for the backward pass."""
        self.model.recompute = False

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether the backward pass recomputes each block."""
        return self.model.recompute

    def _init_weights(self, module: Any) -> None:
        """Do nothing: the decoder has initialised its weights."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: DecoderCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits (B, T, vocab_size), and the loss if labels are given.

        Args:
            input_ids: (B, T) token ids; with a cache only the new tokens.
            attention_mask: (B, tokens so far), 0 at padding.
            position_ids: (B or 1, T). Without a mask and a cache, a new document begins where the
                position does not increase by one.
            past_key_values: cache from an earlier call.
            labels: (B, T), -100 at tokens without a loss.
            use_cache: whether to return a cache.
            logits_to_keep: number of last tokens to return logits for, or their indices; 0: all.

        Raises:
            InputError: an argument is not supported.
        """
        for name in NOT_SUPPORTED:
            value = kwargs.get(name, getattr(self.config, name, None))
            if value is not None and value is not False:
                raise InputError(
                    f"a decoder with an encoding does not support {name}: leave it out"
                )
        if input_ids is None:
            raise InputError("input_ids are missing: the encoding may need them")
        if use_cache and past_key_values is None:
            past_key_values = DecoderCache()
        if past_key_values is not None and past_key_values.seen:
            past_key_values.check_positions(position_ids)
            past_key_values.check_mask(attention_mask, input_ids.shape[1])
            hidden = past_key_values.forward(self.model, input_ids)  # (B, T, C)
        else:
            hidden = self._hidden(input_ids, attention_mask, position_ids, past_key_values)
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.model.logits(hidden[:, keep])  # (B, kept, vocab_size)
        loss = None
        if labels is not None:
            size = self.model.config.vocab_size
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)

    def _hidden(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: DecoderCache | None,
    ) -> Tensor:
        """Return the output of the last layer, (B, T, C), without earlier tokens.

        Args:
            input_ids, attention_mask, position_ids: as in `forward`.
            cache: empty cache that gets the tokens, if any.

        Raises:
            InputError: the positions do not fit a cache.
        """
        padding = left_padding(input_ids, attention_mask)  # (B,)
        given = other_positions(position_ids, input_ids, attention_mask, padding)
        if given is not None and cache is not None:
            raise InputError("position_ids with a cache must be 0, 1, 2, ... after the padding")
        if given is not None and attention_mask is None:
            return hidden_of_documents(self.model, input_ids, given)
        tokens = shift(input_ids, padding)  # (B, T)
        if cache is not None:
            hidden = cache.start(self.model, tokens, padding)  # (B, T, C)
        else:
            lengths = (tokens.shape[1] - padding).cpu()  # (B,)
            ids = None if given is None else shift(given, padding)
            hidden = self.model.hidden(tokens, None, ids, final_lengths=lengths)
        return shift(hidden, -padding)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load the model of a folder, as in transformers.

        Buffers that are in no file are recomputed, because transformers leaves them uninitialised.
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
        """Write a folder that `AutoModelForCausalLM` loads with trust_remote_code=True.

        Raises:
            InputError: random values of the encoding would not be saved.
        """
        check_saved(self.model.make_encoding, self.model.config)
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
