"""Prompts of exactly so many tokens: facts hidden in filler, and a vocabulary of whole words.

A text is put together from pieces that no common tokenizer merges: words with the space before
them, and lines. Each piece is encoded once, filler is cut between tokens, so a batch of prompts of
exact lengths needs no search and no loop over rows; the ids are those of the whole text.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from pe_bench.api import Ids, Mask, Part, Sequences, Tokenizer
from pe_bench.text.tokenizer import Ids as Encoded

_PIECES = re.compile(rb" ?(?:[A-Za-z]+|[0-9])|.", re.DOTALL)
_SPECIAL = ("pad", "bos", "eos", "sep")


class WordTokenizer(Tokenizer):
    """Whole words, each with the space before it, and single digits; other text is bytes.

    Args:
        texts: whose words get an id each.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        bytes_ = [bytes([value]) for value in range(256)]
        words = {word for text in texts for word in _PIECES.findall(text.encode())}
        self._pieces = [*bytes_, *sorted(words.difference(bytes_))]
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}
        size = len(self._pieces)
        lengths = np.array([*map(len, self._pieces), 0, 0, 0, 0], dtype=np.int64)
        digest = hashlib.sha256(b"\0".join(self._pieces[256:])).hexdigest()
        super().__init__(
            "words", digest, lengths, {role: size + i for i, role in enumerate(_SPECIAL)}
        )

    def encode(self, text: str | bytes) -> Encoded:
        data = text if isinstance(text, bytes) else text.encode(errors="replace")
        ids: list[int] = []
        for piece in _PIECES.findall(data):
            known = self._ids.get(piece)
            ids += piece if known is None else [known]
        return np.array(ids, dtype=np.int32)

    def _text(self, ids: npt.NDArray[np.int64]) -> str:
        return b"".join(self._pieces[i] for i in ids).decode(errors="replace")


class Spellings:
    """The ids of many texts of one kind, each encoded when it is first needed.

    Args:
        tokenizer: encodes them.
        count: how many there are.
        text: the text of a number below `count`.
    """

    def __init__(self, tokenizer: Tokenizer, count: int, text: Callable[[int], str]) -> None:
        self.count = count
        self._tokenizer, self._text = tokenizer, text
        self._values = np.zeros((count, 1), dtype=np.int64)
        self._sizes = np.zeros(count, dtype=np.int64)

    def part(self, which: Ids, scored: bool = False) -> Part:
        """The texts of these numbers (N,), one for each row."""
        for new in np.unique(which[self._sizes[which] == 0]).tolist():
            ids = self._tokenizer.encode(self._text(new))
            if (missing := len(ids) - self._values.shape[1]) > 0:
                self._values = np.pad(self._values, ((0, 0), (0, missing)))
            self._values[new, : len(ids)] = ids
            self._sizes[new] = len(ids)
        return Part(self._values[which], self._sizes[which], scored)


class Haystack:
    """Writes texts with blanks, and the filler around them.

    Args:
        tokenizer: of everything.
        filler: a text that is repeated, with a space between.
        longest: tokens of the longest filler.
        blanks: what the blank `{name}` of a template stands for.
    """

    def __init__(
        self, tokenizer: Tokenizer, filler: str, longest: int, blanks: Mapping[str, Spellings]
    ) -> None:
        self.tokenizer = tokenizer
        self.blanks = blanks
        self._line_end = tokenizer.encode("\n").astype(np.int64)
        self._fixed: dict[str, Ids] = {}
        times = 2 + longest // len(tokenizer.encode(filler))
        self._filler = tokenizer.encode(" ".join([filler] * times)).astype(np.int64)

    def write(self, template: str, **which: Ids) -> list[Part]:
        """A text, the blanks of each row filled with these numbers' texts."""
        parts = []
        for piece in re.split(r"(\{\w+\})", template):
            if piece[:1] == "{":
                parts.append(self.blanks[piece[1:-1]].part(which[piece[1:-1]]))
            elif piece:
                if piece not in self._fixed:
                    self._fixed[piece] = self.tokenizer.encode(piece).astype(np.int64)
                parts.append(Part(self._fixed[piece]))
        return parts

    def filler(self, sizes: Ids) -> list[Part]:
        """A line of filler of so many tokens (N,), its end included; 0: no line."""
        end = np.minimum(sizes, len(self._line_end))
        words = self._filler[: max(0, int((sizes - end).max(initial=0)))]
        return [Part(words, sizes - end), Part(self._line_end, end)]


def tokens(parts: Iterable[Part], rows: int) -> Ids:
    """How many tokens the parts have in each row."""
    total = np.zeros(rows, dtype=np.int64)
    for part in parts:
        total += np.shape(part.values)[-1] if part.lengths is None else part.lengths
    return total


def spread(shares: npt.NDArray[np.float64], room: Ids) -> Ids:
    """Sizes (N, K + 1) of the lines of filler between K facts, `room` (N,) tokens in all.

    Args:
        shares: of the filler that come before each fact, (N, K), ascending.
        room: how much filler there is.
    """
    cuts = np.rint(shares * room[:, None]).astype(np.int64)
    sizes = np.diff(cuts, axis=1, prepend=0, append=room[:, None])
    # An empty line would make one token with the end of the line before, in many vocabularies.
    empty = sizes == 1
    sizes[empty] = 0
    sizes[np.arange(len(sizes)), sizes.argmax(1)] += empty.sum(1)
    return sizes


def pack(pieces: Sequences, kept: Mask) -> Part:
    """Those of N * K pieces that are kept (N, K), K in each row, one after the other."""
    rows, each = kept.shape
    values, sizes = pieces.ids.reshape(rows, each, -1), pieces.lengths.reshape(rows, each) * kept
    ends = sizes.cumsum(1)
    packed = np.zeros((rows, int(ends.max(initial=0))), dtype=np.int64)
    row, piece, column = np.nonzero(np.arange(values.shape[2]) < sizes[:, :, None])
    packed[row, (ends - sizes)[row, piece] + column] = values[row, piece, column]
    return Part(packed, sizes.sum(1))


def distinct(random: np.random.Generator, shape: tuple[int, int], count: int) -> Ids:
    """Numbers below `count`, no two alike in a row."""
    # A window of one shuffle for each row: shuffling for each would take longer than all the rest.
    shuffled, starts = random.permutation(count), random.integers(count, size=(shape[0], 1))
    found: Ids = shuffled[(starts + np.arange(shape[1])) % count]
    return found


def names(count: int | None = None) -> list[str]:
    """So many names of two syllables that mean nothing; None: all 7,225."""
    syllables = [c + v for c in "bdfghjklmnprstvwz" for v in "aeiou"]
    pairs = np.random.default_rng(0).permutation(len(syllables) ** 2)[:count].tolist()
    return [syllables[i // 85] + syllables[i % 85] for i in pairs]
