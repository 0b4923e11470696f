"""A vocabulary of whole words, so that small models learn a task on text in minutes."""

import hashlib
import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pe_bench.text.tokenizer import Tokenizer

PIECES = re.compile(rb" ?(?:[A-Za-z]+|[0-9])|.", re.DOTALL)
SPECIAL = ("pad", "bos", "eos", "sep")


class WordTokenizer(Tokenizer):
    """One id for each word with the space before it, and for each digit; other text is bytes.

    Args:
        texts: texts that contain all words of the vocabulary.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        single_bytes = [bytes([value]) for value in range(256)]
        words = {word for text in texts for word in self.pieces(text)}
        self._pieces = [*single_bytes, *sorted(words.difference(single_bytes))]
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}
        size = len(self._pieces)
        byte_lengths = np.array([*map(len, self._pieces), 0, 0, 0, 0], dtype=np.int64)
        digest = hashlib.sha256(b"\0".join(self._pieces[256:])).hexdigest()
        special = {role: size + i for i, role in enumerate(SPECIAL)}
        super().__init__("words", digest, byte_lengths, special)

    @staticmethod
    def pieces(text: str | bytes) -> list[bytes]:
        """Split a text into parts that are one token each if the vocabulary has them."""
        data = text if isinstance(text, bytes) else text.encode(errors="replace")
        return PIECES.findall(data)

    def encode(self, text: str | bytes) -> npt.NDArray[np.int32]:
        ids: list[int] = []
        for piece in self.pieces(text):
            known = self._ids.get(piece)
            ids += piece if known is None else [known]
        return np.array(ids, dtype=np.int32)

    def _text(self, ids: npt.NDArray[np.int64]) -> str:
        return b"".join(self._pieces[i] for i in ids).decode(errors="replace")
