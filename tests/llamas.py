"""Tiny models of transformers and their folders, for the tests."""

from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor

ORIGINAL = 24
VOCABULARY = 270
YARN = {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": ORIGINAL}
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": ORIGINAL,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 4.0,
    "low_freq_factor": 0.5,
    "high_freq_factor": 2.0,
    "original_max_position_embeddings": ORIGINAL,
}
LONGROPE = {
    "rope_type": "longrope",
    "factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
    "short_factor": [1.0, 1.0, 1.5, 2.0],
    "long_factor": [1.0, 2.0, 3.0, 4.5],
}
ALL_OF_YARN = {
    **YARN,
    "rope_theta": 1e6,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
    "mscale": 2.0,
    "mscale_all_dim": 0.5,
    "truncate": False,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 2": ("Llama", {"num_key_value_heads": 6}),
    "llama 3": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    "llama 3.1": (
        "Llama",
        {"rope_parameters": LLAMA3, "max_position_embeddings": 4 * ORIGINAL},
    ),
    "smollm": ("Llama", {"tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen 2": ("Qwen2", {"tie_word_embeddings": True}),
    "linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    "dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}),
    "yarn": ("Llama", {"rope_parameters": YARN}),
    "yarn, all options": ("Qwen2", {"rope_parameters": ALL_OF_YARN}),
    "longrope": (
        "Llama",
        {"rope_parameters": LONGROPE, "max_position_embeddings": 4 * ORIGINAL},
    ),
}
"""Class and config of each kind, by name."""

OTHER_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen 3": ("Qwen3", {"head_dim": 16}),
    "olmo 2": ("Olmo2", {}),
    "gpt 2": ("GPT2", {"num_key_value_heads": None, "max_position_embeddings": 80}),
}
"""Kinds of other families."""


def own_encoding(kind: str) -> str:
    """Return the encoding that a kind of model has."""
    return "learned" if kind == "gpt 2" else "rope"


def reference(kind: str) -> Any:
    """Return a tiny model of transformers whose weights have no special values."""
    import transformers

    family, changes = {**KINDS, **OTHER_KINDS}[kind]
    rotation = {"rope_theta": 10_000.0, **changes.get("rope_parameters", {"rope_type": "default"})}
    special = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
    values = {**SHAPE, **special, **changes, "rope_parameters": rotation}
    config = getattr(transformers, f"{family}Config")(**values)
    torch.manual_seed(0)
    name = "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"
    model = getattr(transformers, name)(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name or "ln_" in name else 0.0, 0.15)
    return model.eval()


def write_tokenizer(path: Path) -> None:
    """Write a tokenizer.json of 259 ids: one for each byte, and the special ids of Llama 2."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {word: index for index, word in enumerate(words)}
    inner = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>")
    )
    inner.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    )
    inner.add_special_tokens(["<s>", "</s>"])
    inner.save(str(path / "tokenizer.json"))


def tokens(rows: int = 2, length: int = 60) -> Tensor:
    """Return fixed random tokens."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCABULARY, (rows, length), generator=generator)
