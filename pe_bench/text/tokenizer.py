"""Tokenizers: text to token ids and back, and the bytes of every id.

Scores are in bits per byte, the only unit that is comparable across tokenizers. A tokenizer is
therefore accepted only if the tokens of a text represent exactly the bytes of that text.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.integer]  # any shape and integer type
Lengths = npt.NDArray[np.int64]


SPECIAL_NAMES = {  # names of special tokens in published vocabularies, by role
    "pad": ("<pad>", "<|pad|>", "<|padding|>", "[PAD]", "<|finetune_right_pad_id|>"),
    "bos": ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[BOS]"),
    "eos": ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "[EOS]"),
    "sep": ("<sep>", "<|sep|>", "[SEP]"),
}


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
