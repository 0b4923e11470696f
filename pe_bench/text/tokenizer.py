"""Tokenizers: text to token ids and back, and the bytes of every id.

Scores are in bits per byte, the only unit that is comparable across tokenizers. A tokenizer is
therefore accepted only if the tokens of a text represent exactly the bytes of that text.
"""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pe_bench.errors import InputError
from pe_bench.system.cache_entries import mark_used
from pe_bench.system.files import write_atomic
from pe_bench.system.sealed import read_if_intact, read_sealed, write_sealed
from pe_bench.text.corpus import Corpus, Piece

TokenIds = npt.NDArray[np.integer]  # any shape and integer type
Lengths = npt.NDArray[np.int64]

MAX_IDS = 1 << 24  # a model with more ids would fit on no machine
MIN_VOCAB = 300  # 256 bytes, the special tokens and some merges

SPECIAL_NAMES = {  # names of special tokens in published vocabularies, by role
    "pad": ("<pad>", "<|pad|>", "<|padding|>", "[PAD]", "<|finetune_right_pad_id|>"),
    "bos": ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[BOS]"),
    "eos": ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "[EOS]"),
    "sep": ("<sep>", "<|sep|>", "[SEP]"),
}
_TEXT_PARTS = ("normalizer", "pre_tokenizer", "decoder")
USUAL = bytes([9, 10, *range(32, 127), *range(0x80, 0xC0), *range(0xC2, 0xF1)])
"""Bytes that a tokenizer must cover: ASCII text, and nearly all multi-byte characters."""

_SPACE = "\u2581"  # SentencePiece's sign for a space
_SPACE_BYTES = tuple(f"<0x{byte:02X}>" for byte in _SPACE.encode())


class Tokenizer(ABC):
    """Turns text into ids in [0, vocab_size) and back.

    Attributes:
        name: name in tables.
        fingerprint: SHA-256 (hex) of everything that determines the ids.
        vocab_size: number of ids, special ones included.
        byte_lengths: (vocab_size,) int64, number of UTF-8 bytes of each id; 0 for special ids.
        pad, bos, eos, sep: ids of the special tokens; no text encodes to them. They differ, except
            for tokens that a pretrained model lacks.
    """

    def __init__(
        self, name: str, fingerprint: str, byte_lengths: Lengths, special: dict[str, int]
    ) -> None:
        self.name = name
        self.fingerprint = fingerprint
        self.vocab_size = len(byte_lengths)
        self.byte_lengths = byte_lengths
        self.pad, self.bos, self.eos, self.sep = (special[role] for role in SPECIAL_NAMES)

    @cached_property
    def digit_ids(self) -> tuple[int, ...]:
        """The ids of one decimal digit, with or without a space."""
        return self._ids_where(lambda text: re.fullmatch(" ?[0-9]", text) is not None)

    @cached_property
    def separator_ids(self) -> tuple[int, ...]:
        """The ids whose text ends in a full stop or a newline."""
        return self._ids_where(lambda text: text.endswith((".", "\n")))

    def _ids_where(self, holds: Callable[[str], bool]) -> tuple[int, ...]:
        ids = np.flatnonzero(self.byte_lengths)
        return tuple(int(i) for i in ids if holds(self._text(np.array([i]))))

    @abstractmethod
    def encode(self, text: str | bytes) -> TokenIds:
        """Return the ids (T,) of a text, without special tokens; unpaired surrogates become `?`.

        Raises:
            InputError: the tokenizer needs UTF-8, and these bytes are not.
        """

    def encode_text(self, text: str) -> TokenIds:
        """Return the ids (T,) of a whole text as the `tokenizers` library encodes it.

        Some vocabularies put a space before the text. `encode` does not: its ids represent exactly
        the bytes of a text or of a part of one.
        """
        return self.encode(text)

    def decode(self, ids: npt.ArrayLike) -> str:
        """Return the text of ids (T,), without special and unknown ids; replace invalid UTF-8."""
        known = np.asarray(ids, dtype=np.int64)
        known = known[(known >= 0) & (known < self.vocab_size)]
        return self._text(known[self.byte_lengths[known] > 0])

    @abstractmethod
    def _text(self, ids: npt.NDArray[np.int64]) -> str: ...


class ByteTokenizer(Tokenizer):
    """One id for each byte, then the special tokens: 260 ids, without fitting or files.

    Source: ByT5 (Xue et al. 2022, arXiv:2105.13626), with the special ids last.
    """

    def __init__(self) -> None:
        lengths = np.repeat(np.array([1, 0], dtype=np.int64), [256, len(SPECIAL_NAMES)])
        special = {role: 256 + index for index, role in enumerate(SPECIAL_NAMES)}
        super().__init__("bytes", hashlib.sha256(b"bytes-v1").hexdigest(), lengths, special)

    def encode(self, text: str | bytes) -> TokenIds:
        data = text if isinstance(text, bytes) else text.encode(errors="replace")
        return np.frombuffer(data, dtype=np.uint8).astype(np.int32)

    def _text(self, ids: npt.NDArray[np.int64]) -> str:
        return ids.astype(np.uint8).tobytes().decode(errors="replace")


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
        special: dict[str, int] = {}
        for role, names in SPECIAL_NAMES.items():
            known = [named[token] for token in names if token in named]
            if known:
                special[role] = known[0]
        end = special.get("eos", special.get("bos"))
        given = {
            role: index
            for role, index in (model_ids or {}).items()
            if index in named.values() and index != special.get(role, end)
        }
        special |= given
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
        digest.update((b"strips" if strips else b"") + (str(given).encode() if given else b""))
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


def load_tokenizer(spec: str, corpus: Corpus, cache: Path) -> Tokenizer:
    """Return the tokenizer of a specification.

    Args:
        spec: `bytes`; `bpe:SIZE`, a byte-level BPE of SIZE ids (special ids included; fewer if
            the text has too few repeated pairs), fitted to the first piece of the corpus' train
            split, which is usually all of it; the path of a tokenizer.json; or the folder of a
            checkpoint with a tokenizer.json and a config.json that gives the number of ids.
        corpus: the text in use.
        cache: folder for fitted vocabularies (`tokenizers`) and text (`datasets`).

    Raises:
        InputError: the specification is unknown, the vocabulary too small, or the file missing or
            unusable.
    """
    if spec == "bytes":
        return ByteTokenizer()
    fit = re.fullmatch(r"bpe:(\d{1,7})", spec)
    if fit:
        size = int(fit[1])
        if size < MIN_VOCAB:
            raise InputError(f"a vocabulary of {size} is too small: give at least {MIN_VOCAB}")
        return BpeTokenizer(f"bpe:{size}", _fitted(size, corpus.train[0], cache))
    path = Path(spec)
    if (path / "config.json").is_file():
        return model_tokenizer(path)
    if not path.is_file():
        raise InputError(
            f"there is no tokenizer '{spec}': give bytes, bpe:SIZE such as bpe:8192, "
            "or the path of an existing tokenizer.json"
        )
    return BpeTokenizer(f"{path.resolve().parent.name}/{path.name}", path.read_bytes())


def model_tokenizer(folder: Path) -> BpeTokenizer:
    """Return the tokenizer of a checkpoint, with the number of ids and special ids of its config.

    Args:
        folder: folder of the checkpoint, with config.json.

    Raises:
        InputError: tokenizer.json is missing, or it has ids that the model lacks.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(
            f"{folder} has no tokenizer.json: copy the model's file into it; a "
            "tokenizer.model is not supported"
        )
    content = path.read_bytes()
    config = json.loads((folder / "config.json").read_bytes())
    ids = {}
    for role in ("bos", "eos"):
        found = config.get(f"{role}_token_id")
        first = found[0] if isinstance(found, list) and found else found
        if isinstance(first, int):
            ids[role] = first
    if len(ids) < 2:
        ids = {**_ids_of_names(folder, content), **ids}
    name = f"{folder.resolve().name}/{path.name}"
    return BpeTokenizer(name, content, model_size=config["vocab_size"], model_ids=ids)


def _ids_of_names(folder: Path, content: bytes) -> dict[str, int]:
    """Return the ids of the special tokens that tokenizer_config.json names, by role."""
    path = folder / "tokenizer_config.json"
    try:
        names = json.loads(path.read_bytes()) if path.is_file() else {}
        added = json.loads(content).get("added_tokens", [])
        known = {token["content"]: token["id"] for token in added}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}  # damaged files are refused where they are needed
    found = {}
    for role in ("bos", "eos"):
        token = names.get(f"{role}_token") if isinstance(names, dict) else None
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str) and token in known:
            found[role] = known[token]
    return found


def _fitted(size: int, piece: Piece, cache: Path) -> bytes:
    """Return the tokenizer.json of a BPE fitted to a piece, from the cache if possible."""
    import tokenizers
    from tokenizers.pre_tokenizers import ByteLevel

    name = f"bpe{size}-{piece.fingerprint[:16]}-tokenizers{tokenizers.__version__}.json"
    path = cache / "tokenizers" / name
    seal = path.with_name(f"{path.stem}.seal")
    if read_if_intact(lambda: read_sealed(seal, owner=name)) is not None:
        mark_used(path)
        return path.read_bytes()
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size - len(SPECIAL_NAMES),
        min_frequency=2,
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    batches = piece.documents(cache).iter(batch_size=32)
    inner.train_from_iterator((batch["text"] for batch in batches), trainer)
    content = inner.to_str().encode()
    write_atomic(path, content)
    write_sealed(seal, {}, owner=name, files=[path])
    return content


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
