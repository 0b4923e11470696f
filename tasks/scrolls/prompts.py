"""How a document and the wanted output become one sequence of tokens."""

from dataclasses import dataclass

from pe_bench.api import Tokenizer


@dataclass(frozen=True)
class StrictFormat:
    """BOS input SEP output EOS, the same in training and evaluation."""

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
    """As the TAPE paper's scripts feed their models, oddities included."""

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
    """BOS document EOS options EOS question answer EOS: paragraphs of the input, the last first.

    A row of training goes on with more questions about its document, question answer EOS each, so
    that most of its tokens do not serve one answer alone.
    """

    tokenizer: Tokenizer

    def prompt(self, text: str, room: int, summary: bool, training: bool) -> list[int]:
        question, _, document = text.rpartition("\n\n")
        return [*self.document(document), *self.question(question)]

    def document(self, text: str) -> list[int]:
        """Return the beginning of a row."""
        return [self.tokenizer.bos, *self.tokenizer.encode(text).tolist(), self.tokenizer.eos]

    def question(self, text: str) -> list[int]:
        """Return what comes before an answer; nothing where the document is to be summed up."""
        ids: list[int] = []
        for paragraph in reversed(text.split("\n\n") if text else []):
            ids += [self.tokenizer.eos] if ids else []
            # After a space, so that a word has the id that it has inside a text.
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
    """Return the first tokens of a text, without reading all of a long one where that is safe."""
    margin = 64  # where a text is cut changes only the last few tokens before the cut
    some: list[int] = tokenizer.encode_text(text[: 8 * (count + margin)]).tolist()
    if len(some) < count + margin:
        some = tokenizer.encode_text(text).tolist()
    return some[:count]
