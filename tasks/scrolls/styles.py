"""Words and sentences of the seven kinds of built-in documents."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pe_bench.api import WordTokenizer


def _words(text: str) -> list[str]:
    return text.split()


NAMES = _words("Ada Ben Cleo Dan Eve Finn Gus Hana Ivo Jill Kai Lena Max Nora Otto Pia")
THINGS = _words(
    "anchors baskets candles drums feathers flags gloves hammers jars keys ladders mirrors pillows "
    "ropes spoons violins"
)
PLACES = _words(
    "barn cellar garden tower mill harbour attic bakery bridge cabin castle cave chapel forest "
    "kitchen library market meadow orchard pantry stable tunnel valley wharf"
)
PEOPLE = _words(
    "baker smith miller tailor doctor farmer judge nurse pilot sailor weaver potter painter hunter "
    "cook singer dancer teacher lawyer barber gardener mason butcher banker"
)
METHODS = _words(
    "dropout pooling caching voting hashing masking sorting tagging pruning scaling mixing padding "
    "tiling boosting warping parsing cropping blending folding ranking rounding shifting splitting "
    "merging"
)
COLOURS = _words(
    "red blue green white black grey brown yellow pink purple orange golden silver beige violet "
    "scarlet"
)
MATERIALS = _words(
    "oak pine steel copper brass clay cotton silk wool leather paper marble granite ivory rubber "
    "velvet"
)


@dataclass(frozen=True)
class Style:
    """A kind of document.

    Attributes:
        heading: first line.
        fact: template of a fact with a name {a}, a thing {b}, and the values {c} and {d}.
        aside: template of a sentence with a name but without a fact.
        query: template of a question about the fact of the thing {b}.
        answer: template of the answer, with the fact's values.
        values: lists of words for {c} and {d}.
        joiner: separator of sentences.
        marked: for documents without a query: templates of the facts to summarise, one for each.
        unknown: answer to a question about a thing without a fact; empty without such questions.
    """

    heading: str
    fact: str
    aside: str
    answer: str
    values: tuple[Sequence[str], ...]
    query: str = ""
    joiner: str = " "
    marked: tuple[str, ...] = ()
    unknown: str = ""

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Number of tokens of the parts, equal for all documents: each word is one token."""
        words = {"a": "Ada", "b": "keys", "c": "red", "d": "barn"}
        words["options"] = list_options(["red"] * 4)
        parts = {"heading": self.heading, "query": self.query, "answer": self.answer}
        parts |= {"fact": self.joiner + self.fact, "aside": self.joiner + self.aside}
        parts["marked"] = "".join(self.joiner + form for form in self.marked)
        sizes = {name: len(tokens(part.format(**words))) for name, part in parts.items()}
        sizes["answer"] = max(sizes["answer"], len(tokens(self.unknown)))
        return sizes


STYLES = {
    "paper question": Style(
        heading="Method.",
        fact="On {b} {c}.",
        aside="We thank {a}.",
        query="On {b}",
        answer="{c}",
        values=(METHODS,),
        unknown="Unanswerable",
    ),
    "inference": Style(
        heading="AGREEMENT.",
        fact="Selling {b} {c}.",
        aside="{a} signs.",
        query="Selling {b}",
        answer="{c}",
        values=(("permitted", "forbidden"),),
        unknown="Not mentioned",
    ),
    "story question": Style(
        heading="CHAPTER ONE.",
        fact="Near {b} {c}.",
        aside="{a} slept.",
        query="Near {b}",
        answer="{c}",
        values=(PLACES,),
    ),
    "multiple choice": Style(
        heading="The Market.",
        fact="For {b} {c}.",
        aside="{a} laughed.",
        query="For {b}\n\n{options}",
        answer="{c}",
        values=(PEOPLE,),
    ),
    "meeting query": Style(
        heading="Chair: Welcome.",
        fact="Paint {b} {c} {d}.",
        aside="{a}: Um, okay.",
        query="Paint {b}",
        answer="{c} {d}",
        values=(COLOURS, MATERIALS),
        joiner="\n",
    ),
    "screenplay": Style(
        heading="SCENE ONE.",
        fact="The {c} has {b}.",
        aside="{a}: Are you sure?",
        answer="{c}",
        values=(PLACES,),
        joiner="\n",
        marked=("[The {c} reveals {b}.]", "[The {c} conceals {b}.]"),
    ),
    "report": Style(
        heading="Background.",
        fact="The {c} had {b}.",
        aside="{a} agreed.",
        answer="{c}",
        values=(PEOPLE,),
        marked=("The {c} needed {b}.", "The {c} deserved {b}."),
    ),
}
LABELS = {"permitted": "Entailment", "forbidden": "Contradiction"}  # answers of "inference"


def tokens(text: str) -> list[bytes]:
    """Split a text into words, digits and other characters: the tokens of `tokenizer`."""
    return WordTokenizer.pieces(text)


def tokenizer() -> WordTokenizer:
    """Return a tokenizer with one token for each word of the documents."""
    texts = [*NAMES, *THINGS, *PLACES, *PEOPLE, *METHODS, *COLOURS, *MATERIALS]
    texts += [*LABELS, *LABELS.values(), list_options(PEOPLE[:4])]
    for style in STYLES.values():
        texts += [style.heading, *style.marked, style.fact, style.aside, style.query, style.unknown]
    plain = [re.sub(r" ?\{\w+\}", "", text) for text in texts]
    return WordTokenizer([*plain, *(f" {text}" for text in plain)])


def list_options(choices: Sequence[str]) -> str:
    """Return the options of a multiple-choice question, one per line."""
    lettered = zip("ABCD", choices, strict=False)
    return "\n".join(f" ({letter}) {choice}" for letter, choice in lettered)
