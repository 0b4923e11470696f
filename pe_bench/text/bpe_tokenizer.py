"""Tokenizers of the `tokenizers` library, made exact in bytes."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pe_bench.errors import InputError
from pe_bench.text.tokenizer import SPECIAL_NAMES, Lengths, TokenIds, Tokenizer

MAX_IDS = 1 << 24  # a model with more ids would fit on no machine

_TEXT_PARTS = ("normalizer", "pre_tokenizer", "decoder")

USUAL = bytes([9, 10, *range(32, 127), *range(0x80, 0xC0), *range(0xC2, 0xF1)])
"""Bytes that a tokenizer must cover: ASCII text, and nearly all multi-byte characters."""

_SPACE = "\u2581"  # SentencePiece's sign for a space

_SPACE_BYTES = tuple(f"<0x{byte:02X}>" for byte in _SPACE.encode())


class BpeTokenizer(Tokenizer):
    """A vocabulary of the `tokenizers` library, from a tokenizer.json.

    Steps that add or change bytes are removed: a space before the text and Unicode
    normalisation (`encode_text` keeps both), truncation, special tokens inside a text, and spaces
    that an added token takes in. Special tokens that the vocabulary lacks get new ids after its
    last one.

    Args:
        name: name in tables.
        content: the tokenizer.json.
        model_size: number of ids of a pretrained model, which cannot take new ids: the end of text
            then replaces missing special tokens. None: there is no model yet.
        model_ids: ids of special tokens of a pretrained model, by role. They take precedence over
            tokens with a known name.

    Attributes:
        content: the tokenizer.json.

    Raises:
        InputError: the content is not a tokenizer.json, its tokens have no definite bytes, or its
            ids differ from the model's.
    """

    def __init__(
        self,
        name: str,
        content: bytes,
        *,
        model_size: int | None = None,
        model_ids: Mapping[str, int] | None = None,
    ) -> None:
        import tokenizers  # late: the byte tokenizer needs no library

        try:
            file = json.loads(content)
            file |= {part: _without_additions(file.get(part)) for part in _TEXT_PARTS}
            strips = _stop_stripping(file.get("added_tokens", []))
            self._inner = tokenizers.Tokenizer.from_str(json.dumps(file))
            self._unchanged = tokenizers.Tokenizer.from_str(content.decode())
        except Exception as error:  # the library raises nothing more specific
            raise InputError(f"{name} is not a usable tokenizer.json ({error})") from error
        for inner in (self._inner, self._unchanged):
            inner.no_truncation()
            inner.no_padding()
            inner.encode_special_tokens = True  # "</s>" inside a text is text
        vocab = self._inner.get_vocab()  # the library closes gaps between ids of the file
        largest = max(vocab.values(), default=0)
        if largest >= MAX_IDS:
            raise InputError(f"{name} has the id {largest:,}, but ids must be below {MAX_IDS:,}")
        added = {t["content"]: t["special"] for t in file.get("added_tokens", [])}
        byte_level = "ByteLevel" in str(file["decoder"])
        self._byte_level = byte_level
        self._space_ids = [vocab[token] for token in _SPACE_BYTES if token in vocab]
        self._uncovered = _uncovered_bytes(vocab) if byte_level else None
        lengths = _byte_lengths(vocab, byte_level, added)
        named = {token: vocab[token] for token, is_special in added.items() if is_special}
        special, of_model = _special_ids(named, model_ids or {})
        missing = [role for role in SPECIAL_NAMES if role not in special]
        if model_size is None:
            special |= {role: len(lengths) + index for index, role in enumerate(missing)}
            model_size = max(len(lengths), *(1 + index for index in special.values()))
        elif missing:
            special |= dict.fromkeys(missing, _end_of_text(name, special))
        if len(lengths) > model_size:
            raise InputError(
                f"{name} has {len(lengths):,} ids, but the model has {model_size:,}: give the "
                "tokenizer.json of this model"
            )
        self.content = content
        lengths = np.pad(lengths, (0, model_size - len(lengths)))
        # Version 2: `encode_text` agrees with the library.
        changes = self._unchanged.encode("a").ids != self._inner.encode("a").ids
        digest = hashlib.sha256(content + (b"v2" if changes else b""))
        # Also changed since: spaces around added tokens, and special tokens that the model names.
        if strips:
            digest.update(b"strips")
        if of_model:
            digest.update(str(of_model).encode())
        super().__init__(name, digest.hexdigest(), lengths, special)
        self._require_exact_bytes()

    def encode(self, text: str | bytes) -> TokenIds:
        data = text if isinstance(text, bytes) else text.encode(errors="replace")
        try:
            decoded = data.decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"the text is not UTF-8 at byte {error.start}, but {self.name} needs UTF-8: "
                "use the tokenizer bytes, which accepts any bytes"
            ) from error
        lost = self._uncovered.search(data) if self._uncovered else None
        if lost:
            raise InputError(
                f"the text has the byte 0x{lost[0].hex()} at byte {lost.start()}, for which "
                f"{self.name} has no token: leave this text out, or use another tokenizer"
            )
        if self._byte_level or _SPACE not in decoded:
            encoding = self._inner.encode_batch_fast([decoded], add_special_tokens=False)[0]
            return np.array(encoding.ids, dtype=np.int32)
        return self._encode_with_space_sign(decoded)

    def _encode_with_space_sign(self, text: str) -> TokenIds:
        """Return the ids of a text with U+2581, which the vocabulary would treat as a space."""
        if len(self._space_ids) < len(_SPACE_BYTES):
            raise InputError(
                f"the text has the character U+2581, which {self.name} confuses with a space: "
                "use another tokenizer"
            )
        pieces = self._inner.encode_batch_fast(text.split(_SPACE), add_special_tokens=False)
        ids = list(pieces[0].ids)
        for piece in pieces[1:]:
            ids += [*self._space_ids, *piece.ids]
        return np.array(ids, dtype=np.int32)

    def encode_text(self, text: str) -> TokenIds:
        valid = text.encode(errors="replace").decode()
        encoding = self._unchanged.encode_batch_fast([valid], add_special_tokens=False)[0]
        return np.array(encoding.ids, dtype=np.int32)

    def _text(self, ids: npt.NDArray[np.int64]) -> str:
        return self._inner.decode(ids.tolist(), skip_special_tokens=False)

    def _require_exact_bytes(self) -> None:
        """Check that every text of covered bytes survives a round trip."""
        # Every covered byte, in characters of one to four bytes, and leading and trailing spaces.
        codes = [*range(0x800), *range(0x800, 0xD800, 0x400), *range(0xE000, 0x110000, 0x400)]
        characters = [chr(code) for code in codes]
        exact = True
        if self._uncovered:
            exact = not self._uncovered.search(USUAL)
            characters = [c for c in characters if not self._uncovered.search(c.encode())]
        probe = "  " + "".join(characters) + "  "
        if exact:
            ids = self.encode(probe)
            lengths = self.byte_lengths[ids].sum()
            exact = lengths == len(probe.encode()) and self.decode(ids) == probe
        if not exact:
            raise InputError(
                f"{self.name} does not reproduce every text, but bits per byte need a "
                "byte-level tokenizer: use bytes, bpe:8192 or the tokenizer.json of one"
            )


def _special_ids(
    named: Mapping[str, int], model_ids: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the ids of the special tokens that a vocabulary has, and those that the model changes.

    Args:
        named: ids of the vocabulary's special tokens, by name.
        model_ids: ids of special tokens of a pretrained model, by role.

    Returns:
        Ids by role, and the part of them that comes from the model and differs from the names.
    """
    special = {}
    for role, names in SPECIAL_NAMES.items():
        known = [named[token] for token in names if token in named]
        if known:
            special[role] = known[0]
    end = special.get("eos", special.get("bos"))
    of_model = {}
    for role, index in model_ids.items():
        if index in named.values() and index != special.get(role, end):
            of_model[role] = index
    return special | of_model, of_model


def _end_of_text(name: str, special: dict[str, int]) -> int:
    """Return the id of the end of text, or else the id of the beginning of text."""
    for role in ("eos", "bos"):
        if role in special:
            return special[role]
    raise InputError(f"{name} has no special token that ends a text, such as </s>")


def _without_additions(part: Any) -> Any:
    """Return a part of a tokenizer.json, if any, without steps that add, drop or change bytes."""
    match part:
        case {"type": "Prepend" | "Strip" | "NFC"}:
            return None
        case {"type": "ByteLevel"}:
            return part | {"add_prefix_space": False}
        case {"type": "Metaspace"}:
            kept = {key: part[key] for key in part.keys() - {"add_prefix_space"}}
            return kept | {"prepend_scheme": "never"}
        case {"type": "Sequence"}:
            (key,) = part.keys() - {"type"}
            return part | {key: [p for p in map(_without_additions, part[key]) if p]}
    return part


def _stop_stripping(added: list[dict[str, Any]]) -> bool:
    """Stop added tokens from absorbing the spaces around them. Return whether any did."""
    strips = False
    for token in added:
        if not token.get("special") and (token.get("lstrip") or token.get("rstrip")):
            strips = True
            token |= {"lstrip": False, "rstrip": False}
    return strips


def _byte_lengths(vocab: dict[str, int], byte_level: bool, added: dict[str, bool]) -> Lengths:
    lengths = np.zeros(max(vocab.values(), default=-1) + 1, dtype=np.int64)
    for token, index in vocab.items():
        if byte_level:  # one character for each byte
            lengths[index] = len(token)
        elif re.fullmatch("<0x[0-9A-F]{2}>", token):  # a byte that no other token covers
            lengths[index] = 1
        else:
            lengths[index] = len(token.replace(_SPACE, " ").encode())
    for token, is_special in added.items():  # plain text even in a byte-level vocabulary
        plain = token if byte_level else token.replace(_SPACE, " ")
        lengths[vocab[token]] = 0 if is_special else len(plain.encode())
    return lengths


def byte_characters() -> list[str]:
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


def _uncovered_bytes(vocab: Mapping[str, int]) -> re.Pattern[bytes] | None:
    """Return a pattern of the bytes without a token in a byte-level vocabulary; None: all have one.

    Some vocabularies of published models lack bytes that are very rare in text.
    """
    characters = byte_characters()
    possible = [*range(0xC0), *range(0xC2, 0xF5)]  # the bytes that occur in UTF-8
    found = [byte for byte in possible if characters[byte] not in vocab]
    return re.compile(b"[%s]" % re.escape(bytes(found))) if found else None
