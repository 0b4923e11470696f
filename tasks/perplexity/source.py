"""Where the text of a run comes from: Python's own library, a folder, .bin files or a download."""

from dataclasses import replace
from pathlib import Path

from pe_bench.api import (
    Corpus,
    DataError,
    InputError,
    TaskContext,
    Tokenizer,
    folder_corpus,
    load_tokenizer,
    stdlib_corpus,
)
from pe_bench.tasks.perplexity.hub_corpora import copied_corpus, public_corpus
from pe_bench.tasks.perplexity.tokenized_corpus import (
    Tokens,
    corpus_tokens,
    file_tokens,
    is_token_text,
)


def open_source(
    context: TaskContext, corpus: str | None, train_files: int
) -> tuple[Tokenizer, Tokens]:
    """Return the tokenizer of a run and its text as ids.

    Args:
        context: what the run decides.
        corpus: name of the corpus; None: what --data has, else the standard library.
        train_files: number of files of a public corpus' train split.

    Raises:
        DataError, InputError: there is no such text.
    """
    if context.data is None:
        text = _without_data(context, corpus, train_files)
    elif corpus == "stdlib":
        raise InputError(
            "perplexity:corpus=stdlib comes with Python: leave out --data or name another one"
        )
    else:
        folder = context.data / corpus if corpus else context.data
        path = folder if folder.exists() else context.data
        if is_token_text(path):
            return _open_ids(context, path, corpus)
        copied = copied_corpus(corpus, path, train_files) if corpus else None
        text = copied or folder_corpus(path)
        text = replace(text, name=corpus or text.name)
    tokenizer = load_tokenizer(context.tokenizer, text, context.cache)
    return tokenizer, corpus_tokens(text, tokenizer, context.cache)


def _without_data(context: TaskContext, corpus: str | None, train_files: int) -> Corpus:
    if corpus is None and context.preset == "paper":
        raise DataError(
            "preset paper trains on C4: give a folder of its text with --data perplexity=DIR, "
            "or write perplexity:corpus=c4 to download files of 0.3 GB, 36 in all, as training "
            "goes on"
        )
    if corpus in (None, "stdlib"):
        return stdlib_corpus()
    if context.preset == "quick":
        raise DataError(
            f"preset quick downloads nothing: give a folder with the text of {corpus} with "
            "--data perplexity=DIR, or use --preset small"
        )
    return public_corpus(corpus, train_files, context.cache)


def _open_ids(context: TaskContext, path: Path, corpus: str | None) -> tuple[Tokenizer, Tokens]:
    spec = context.tokenizer
    if spec.startswith("bpe:"):
        raise InputError(
            f"{path} holds ids, which have their vocabulary already, not text to fit {spec} "
            "to: give its tokenizer.json as --tokenizer"
        )
    nothing = Corpus(corpus or path.stem)
    tokenizer = load_tokenizer(spec, nothing, context.cache)
    tokens = file_tokens(path, tokenizer)
    return tokenizer, replace(tokens, name=corpus or tokens.name)
