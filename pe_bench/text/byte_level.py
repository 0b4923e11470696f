"""tokenizer.json of the bytes: one id for each byte, then the special tokens."""

import json

from pe_bench.text.tokenizer import ByteTokenizer

SPECIAL = ("<pad>", "<s>", "</s>", "<sep>")


def byte_level_file(tokenizer: ByteTokenizer) -> bytes:
    """Return a tokenizer.json that encodes a text to the ids of a `ByteTokenizer`."""
    import tokenizers

    vocab = {character: byte for byte, character in enumerate(_characters())}
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


def _characters() -> list[str]:
    """Return the character that represents each byte in byte-level vocabularies.

    Printable Latin-1 characters represent themselves; the others are numbered from 256.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    characters = []
    beyond = 256
    for byte in range(256):
        if byte in printable:
            characters.append(chr(byte))
        else:
            characters.append(chr(beyond))
            beyond += 1
    return characters
