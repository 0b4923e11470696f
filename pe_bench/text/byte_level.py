"""tokenizer.json of the bytes: one id for each byte, then the special tokens."""

import json

from pe_bench.text.tokenizer import ByteTokenizer, byte_characters

SPECIAL = ("<pad>", "<s>", "</s>", "<sep>")


def byte_level_file(tokenizer: ByteTokenizer) -> bytes:
    """Return a tokenizer.json that encodes a text to the ids of a `ByteTokenizer`."""
    import tokenizers

    vocab = {character: byte for byte, character in enumerate(byte_characters())}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.add_special_tokens(list(SPECIAL))
    file = json.loads(inner.to_str())
    ids = [token["id"] for token in file["added_tokens"]]
    assert ids == [tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.sep]
    return inner.to_str().encode()
