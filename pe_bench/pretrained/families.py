"""Families of models of transformers, as differences from a Llama.

A family is a declaration: fields that all of its models share, fields of config.json that change
the computation, and names and order of its tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pe_bench.errors import InputError

SLIDING = "sliding_attention"
FULL = "full_attention"

OWN = "pe_bench"
"""`model_type` of a decoder that no class of transformers supports, and the key of fields that
transformers does not have."""

PARTIAL = "partial_rotary_factor"

OUTPUT_NORMS = {
    "post_attention_layernorm": "attention_output_norm",
    "post_feedforward_layernorm": "mlp_output_norm",
}
INPUT_AND_OUTPUT_NORMS = {**OUTPUT_NORMS, "pre_feedforward_layernorm": "post_attention_layernorm"}
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


@dataclass(frozen=True)
class Family:
    """Differences of the models of one `model_type` from a Llama.

    Attributes:
        architecture: class of transformers.
        model: fields of `ModelConfig` that all models share.
        block: fields of `BlockConfig` that all models share.
        defaults: fields of config.json with their default values. A family with `sliding_window`
            among them has windows.
        activation: field of config.json with the activation of the MLP.
        without_rotation: layers without positions: none, the layers that `no_rope_layers` marks
            with 0, or the layers without a window if there are windows.
        partial: whether `partial_rotary_factor` has an effect: only the first channels rotate.
        two_rotations: whether layers with a window have another rotation than the rest.
        learned_positions: whether there is a learned vector for each position, and no rotation.
        fields: fields of config.json with other names than in Llama.
        prefix: prefix of all tensor names but the head's.
        renamed: parts of tensor names, and their names in the decoder.
        fused: tensors that are the concatenation of several tensors of the decoder.
        transposed: whether projections are (inputs, outputs).
        ignored: endings of the names of buffers in old files that are computed instead of loaded.
        needs_window: whether the class of transformers makes the mask of a window also if no layer
            has one.
        unread: fields of config.json that change other families and that transformers ignores here.
    """

    architecture: str
    model: Mapping[str, Any] = field(default_factory=dict)
    block: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    activation: str = "hidden_act"
    without_rotation: Literal["none", "listed", "full"] = "none"
    partial: bool = False
    two_rotations: bool = False
    learned_positions: bool = False
    fields: Mapping[str, str] = field(default_factory=dict)
    prefix: str = "model."
    renamed: Mapping[str, str] = field(default_factory=dict)
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    transposed: bool = False
    ignored: tuple[str, ...] = ("rotary_emb.inv_freq",)
    needs_window: bool = False
    unread: tuple[str, ...] = ()

    @property
    def windows(self) -> bool:
        """Whether layers may attend only to a window of the last keys."""
        return "sliding_window" in self.defaults

    @property
    def can_be_written(self) -> bool:
        """Whether a decoder can be written as a model of the family, tensor by tensor."""
        return not self.fused


NO_SWITCH = ("use_sliding_window", "max_window_layers")
"""Fields that transformers ignores for families whose windows cannot be switched off."""

FIXED_PATTERN = (*NO_SWITCH, "sliding_window_pattern")
"""Fields that transformers ignores for families whose pattern of windows has no number."""

ONE_KIND = (*FIXED_PATTERN, "layer_types")
"""Fields that transformers ignores for families whose layers all have the same window."""

QWEN_WINDOWS = {"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 28}
GEMMA_NORMS = {"norms": "both", "norm_offset": True}
GEMMA = {
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
}

FAMILIES: Mapping[str, Family] = {
    "llama": Family("LlamaForCausalLM"),
    "mistral": Family("MistralForCausalLM", defaults={"sliding_window": 4096}, unread=ONE_KIND),
    "ministral": Family(
        "MinistralForCausalLM", defaults={"sliding_window": 4096}, unread=FIXED_PATTERN
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        model={"qkv_bias": True},
        defaults=QWEN_WINDOWS,
        unread=("sliding_window_pattern",),
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        model={"qk_norm": "rms"},
        defaults={**QWEN_WINDOWS, "head_dim": 128},
        unread=("sliding_window_pattern",),
    ),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        defaults={
            "sliding_window": None,
            "use_sliding_window": False,
            "no_rope_layer_interval": 4,
            "rope_theta": 2_000_000.0,
            "tie_word_embeddings": True,
        },
        without_rotation="listed",
        unread=("max_window_layers", "sliding_window_pattern"),
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        defaults={"sliding_window": None},
        partial=True,
        fused=FUSED,
        unread=ONE_KIND,
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        block={"norm": "layer", "gated": False, "bias": True},
        defaults={
            "n_inner": None,
            "tie_word_embeddings": True,
            "activation_function": "gelu_new",
        },
        activation="activation_function",
        learned_positions=True,
        fields={
            "n_embd": "hidden_size",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_inner": "intermediate_size",
            "n_positions": "max_position_embeddings",
            "layer_norm_epsilon": "rms_norm_eps",
        },
        prefix="transformer.",
        renamed={
            "wte.": "embed_tokens.",
            "wpe.weight": "encodings.0.table",
            "ln_f.": "norm.",
            "h.": "layers.",
            "ln_1.": "input_layernorm.",
            "ln_2.": "post_attention_layernorm.",
            "attn.c_attn.": "self_attn.qkv_proj.",
            "attn.c_proj.": "self_attn.o_proj.",
            "mlp.c_fc.": "mlp.up_proj.",
            "mlp.c_proj.": "mlp.down_proj.",
        },
        fused=FUSED,
        transposed=True,
        ignored=(".attn.bias", ".attn.masked_bias"),
    ),
    "olmo": Family(
        "OlmoForCausalLM",
        block={"norm": "fixed"},
        defaults={"rms_norm_eps": 1e-5},
        unread=("rms_norm_eps",),
    ),
    "olmo2": Family(
        "Olmo2ForCausalLM",
        model={"qk_norm": "width"},
        block={"norms": "output"},
        renamed=OUTPUT_NORMS,
    ),
    "olmo3": Family(
        "Olmo3ForCausalLM",
        model={"qk_norm": "width"},
        block={"norms": "output"},
        defaults={
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
            "rope_theta": 500_000.0,
        },
        two_rotations=True,
        renamed=OUTPUT_NORMS,
        unread=FIXED_PATTERN,
    ),
    "exaone4": Family(
        "Exaone4ForCausalLM",
        model={"qk_norm": "rms"},
        block={"norms": "output"},
        defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
        without_rotation="full",
        renamed=OUTPUT_NORMS,
        unread=NO_SWITCH,
    ),
    "granite": Family(
        "GraniteForCausalLM",
        defaults={
            "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "attention_multiplier": 1.0,
            "logits_scaling": 1.0,
        },
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        block=GEMMA_NORMS,
        defaults={
            **GEMMA,
            "sliding_window_pattern": 2,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        activation="hidden_activation",
        renamed=INPUT_AND_OUTPUT_NORMS,
        needs_window=True,
        unread=FIXED_PATTERN,
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        model={"qk_norm": "rms"},
        block=GEMMA_NORMS,
        defaults={
            **GEMMA,
            "sliding_window_pattern": 6,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "final_logit_softcapping": None,
        },
        activation="hidden_activation",
        two_rotations=True,
        renamed=INPUT_AND_OUTPUT_NORMS,
        needs_window=True,
        unread=NO_SWITCH,
    ),
}
"""Families by `model_type`."""

SCALES = {
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "score_scale",
    "attn_logit_softcapping": "score_cap",
    "final_logit_softcapping": "logit_cap",
}
"""Field of config.json -> field of `BlockConfig`, for families that have it."""

ALIASES = ("n_embd", "n_layer", "n_head", "n_positions")
"""Fields of GPT-2 that transformers also reads under the names of Llama."""

ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}


def complete_fields(family: Family, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config.json that its family reads, with defaults and Llama's names.

    Raises:
        InputError: a field exists under both names, with different values.
    """
    read = {name: value for name, value in content.items() if name not in family.unread}
    found = {**family.defaults, **read}
    for theirs, field_of_llama in family.fields.items():
        if theirs in found:
            both = theirs in ALIASES and field_of_llama in content
            if both and content[field_of_llama] != found[theirs]:
                raise InputError(
                    f"{theirs} is {found[theirs]} and {field_of_llama} is "
                    f"{content[field_of_llama]}, but they are the same: remove one of them"
                )
            found[field_of_llama] = found[theirs]
    if "n_inner" in family.fields and found["n_inner"] is None and found.get("n_embd"):
        found["intermediate_size"] = 4 * found["n_embd"]
    return found


def block_fields(family: Family, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `BlockConfig` for a config.json completed with defaults."""
    fields = dict(family.block)
    for name, own in SCALES.items():
        if name in family.defaults:
            fields[own] = float(content[name] or 0)
    if "logits_scaling" in family.defaults:
        fields["logit_scale"] = 1 / content["logits_scaling"]
    if "query_pre_attn_scalar" in family.defaults:
        fields["score_scale"] = content["query_pre_attn_scalar"] ** -0.5
        fields["embedding_scale"] = content["hidden_size"] ** 0.5
    fields["activation"] = ACTIVATIONS[content[family.activation]]
    head_dim = content.get("head_dim")
    if head_dim and head_dim * content["num_attention_heads"] != content["hidden_size"]:
        fields["head_dim"] = head_dim
    return fields
