"""Formats that turn a document and its output into one sequence of tokens."""

from dataclasses import dataclass

from pe_bench.api import Tokenizer


@dataclass(frozen=True)
class StrictFormat:
    """BOS input SEP output EOS, in training and evaluation."""

    tokenizer: Tokenizer

    def prompt(self, text: str, room: int, summary: bool, training: bool) -> list[int]:
        """Return at most `room` ids."""
        ids = first_tokens(self.tokenizer, first_words(text, 20_000), room - 2)
        return [self.tokenizer.bos, *ids, self.tokenizer.sep]

    def output(self, text: str, limit: int) -> list[int]:
        """Return at most `limit` ids, the last one EOS."""
        ids: list[int] = self.tokenizer.encode_text(text)[: limit - 1].tolist()
        return [*ids, self.tokenizer.eos]


@dataclass(frozen=True)
class PaperFormat:
    """The format of the TAPE paper's scripts, including its oddities."""

    tokenizer: Tokenizer

    def prompt(self, text: str, room: int, summary: bool, training: bool) -> list[int]:
        room -= 1  # the output has an EOS beyond its limit
        if not summary:
            text = first_words(text, 20_000 if training else 15_000)
            return [self.tokenizer.bos, *first_tokens(self.tokenizer, text, room - 1)]
        tail = self.tokenizer.encode("\n Please summarize this report:").tolist()
        framed = f"Context:\n{text}\n Please summarize this report:"
        ids: list[int] = [self.tokenizer.bos, *self.tokenizer.encode_text(framed).tolist()]
        return [*ids[: room - len(tail)], *tail]

    def output(self, text: str, limit: int) -> list[int]:
        ids = [self.tokenizer.bos, *self.tokenizer.encode_text(text).tolist()]
        return [*ids[:limit], self.tokenizer.eos]


@dataclass(frozen=True)
class QuestionLastFormat:
    """BOS document EOS options EOS question answer EOS: paragraphs of the input in reverse order.

    A training row continues with more questions about its document, each as question answer EOS, so
    that a document serves several answers.
    """

    tokenizer: Tokenizer

    def prompt(self, text: str, room: int, summary: bool, training: bool) -> list[int]:
        question, _, document = text.rpartition("\n\n")
        return [*self.document(document), *self.question(question)]

    def document(self, text: str) -> list[int]:
        """Return the beginning of a row."""
        return [self.tokenizer.bos, *self.tokenizer.encode(text).tolist(), self.tokenizer.eos]

    def question(self, text: str) -> list[int]:
        """Return the ids before an answer; empty for a summary of the document."""
        ids: list[int] = []
        for paragraph in reversed(text.split("\n\n") if text else []):
            ids += [self.tokenizer.eos] if ids else []
            # A leading space gives a word the same id as inside a text.
            ids += self.tokenizer.encode(f" {paragraph.strip()}").tolist()
        return ids

    def output(self, text: str, limit: int) -> list[int]:
        """Return at most `limit` ids, the last one EOS."""
        ids: list[int] = self.tokenizer.encode(f" {text}")[: limit - 1].tolist()
        return [*ids, self.tokenizer.eos]


Format = StrictFormat | PaperFormat | QuestionLastFormat


def first_words(text: str, count: int) -> str:
    """Return the text up to its `count`-th space-separated word."""
    words = text.split(" ", count)
    return text if len(words) <= count else " ".join(words[:count])


def first_tokens(tokenizer: Tokenizer, text: str, count: int) -> list[int]:
    """Return the first tokens of a text. Only the beginning of a long text is encoded if safe."""
    margin = 64  # a cut changes only the last few tokens before it
    some: list[int] = tokenizer.encode_text(text[: 8 * (count + margin)]).tolist()
    if len(some) < count + margin:
        some = tokenizer.encode_text(text).tolist()
    return some[:count]
