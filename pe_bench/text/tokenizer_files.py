"""Files that make transformers encode text like a given tokenizer."""

import json
from typing import Any

from pe_bench.text.bpe_tokenizer import BpeTokenizer, byte_characters
from pe_bench.text.tokenizer import SPECIAL_NAMES, ByteTokenizer, Tokenizer


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Return tokenizer.json and tokenizer_config.json by name, with the special tokens in both.

    Vocabularies other than bytes and BPE have no files.
    """
    import tokenizers

    if isinstance(tokenizer, ByteTokenizer):
        content = _byte_level()
    elif isinstance(tokenizer, BpeTokenizer):
        content = tokenizer.content
    else:
        return {}
    inner = tokenizers.Tokenizer.from_str(content.decode())
    ids = {role: getattr(tokenizer, role) for role in SPECIAL_NAMES}
    size = inner.get_vocab_size()
    for role, index in sorted(ids.items(), key=lambda item: item[1]):
        if index == inner.get_vocab_size():  # exists only in the tokenizer in memory
            free = (name for name in SPECIAL_NAMES[role] if inner.token_to_id(name) is None)
            inner.add_special_tokens([next(free)])
    if inner.get_vocab_size() > size:
        content = inner.to_str().encode()
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    for role, index in ids.items():
        token = inner.id_to_token(index)
        if token:
            config[f"{role}_token"] = token
    return {
        "tokenizer.json": content,
        "tokenizer_config.json": json.dumps(config, indent=1, ensure_ascii=False).encode(),
    }


def _byte_level() -> bytes:
    """Return a tokenizer.json with one id for each byte."""
    import tokenizers

    vocab = {character: byte for byte, character in enumerate(byte_characters())}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    inner.decoder = tokenizers.decoders.ByteLevel()
    return inner.to_str().encode()
