"""The source of a run's text: Python source code, a folder, .bin files or a download."""

from collections.abc import Callable, Mapping
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
    python_corpus,
    stdlib_corpus,
    suggest,
)
from pe_bench.api.data import Piece, folder_test
from pe_bench.tasks.perplexity.hub_corpora import copied_corpus, copied_test, public_corpus
from pe_bench.tasks.perplexity.tokenized_corpus import (
    EvalText,
    Tokens,
    corpus_tokens,
    file_test,
    file_tokens,
    is_token_text,
    piece_test,
)

BUILT_IN: Mapping[str, Callable[[], Corpus]] = {"python": python_corpus, "stdlib": stdlib_corpus}
"""Corpora without data: `python` is shipped, `stdlib` differs between Python versions."""
CORPORA = (*BUILT_IN, "pg19", "proofpile", "code", "c4")
DEFAULT = {"small": "pg19", "mid": "c4", "paper": "c4"}
"""The default corpus of a preset; `python` for other presets."""


def open_source(
    context: TaskContext, corpus: str | None, train_files: int
) -> tuple[Tokenizer, Tokens]:
    """Return the tokenizer of a run and its text as ids.

    Args:
        context: settings of the run.
        corpus: name of the corpus; None: the corpus in --data, or else the preset's corpus.
        train_files: number of files of a public corpus' train split.

    Raises:
        DataError, InputError: there is no such text.
    """
    if context.preset == "paper" and context.tokenizer == "bytes":
        raise InputError(
            "preset paper needs tokens of several bytes each: give "
            "a tokenizer.json as --tokenizer, or leave it out for bpe:32000"
        )
    if context.data is None:
        text = _without_data(context, corpus, train_files)
    elif corpus in BUILT_IN:
        raise InputError(
            f"perplexity:corpus={corpus} needs no data: leave out --data or name another one"
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
    corpus = corpus or DEFAULT.get(context.preset, "python")
    if corpus in BUILT_IN:
        return BUILT_IN[corpus]()
    _check_download(context, corpus)
    return public_corpus(corpus, train_files, context.cache)


def _check_download(context: TaskContext, corpus: str) -> None:
    """Refuse downloads for preset quick.

    Raises:
        DataError: the corpus has to be downloaded.
    """
    if context.preset == "quick":
        raise DataError(
            f"preset quick downloads nothing: give a folder with the text of {corpus} with "
            "--data perplexity=DIR, or use --preset small"
        )


def open_tests(
    context: TaskContext, corpus: str | None, test: str, tokenizer: Tokenizer, tokens: Tokens
) -> dict[str, EvalText]:
    """Return the texts to measure on, by the names of their corpora.

    Args:
        context: settings of the run.
        corpus: name of the training corpus, or None.
        test: names joined by +.
        tokenizer: tokenizer of the run.
        tokens: the training corpus.

    Raises:
        DataError, InputError: there is no such text.
    """
    data = context.data
    found = {}
    for name in test.split("+"):
        if name == corpus or name == tokens.name:
            found[name] = EvalText(name, tokens.fingerprint, tokens.test)
        elif data is not None and is_token_text(data / name, "test"):
            found[name] = file_test(name, data / name, tokenizer)
        else:
            piece = _test_piece(context, name)
            found[name] = piece_test(name, piece, tokenizer, context.cache)
    return found


def check_tests(context: TaskContext, corpus: str | None, test: str) -> None:
    """Check the names of the corpora to measure on, and that none is part of the training data.

    Raises:
        InputError: a corpus is unknown, named twice, or part of the training corpus.
    """
    names = test.split("+")
    for name in names:
        if name not in CORPORA:
            raise InputError(
                f"perplexity:test has no corpus '{name}'{suggest(name, list(CORPORA))}; there are "
                f"{', '.join(CORPORA)}, joined by +"
            )
        if names.count(name) > 1:
            raise InputError(f"perplexity:test names {name} twice: leave one of them out")
    if context.data is None:
        return
    inside = [name for name in names if (context.data / name).exists()]
    others = "|".join(name for name in CORPORA if name not in BUILT_IN)
    if inside and not (corpus and (context.data / corpus).exists()):
        raise InputError(
            f"{context.data} has a folder {inside[0]} to measure on, so the training corpus must "
            f"be in another one there: name it with perplexity:corpus={others}"
        )


def _test_piece(context: TaskContext, name: str) -> Piece:
    """Return the test part of a corpus: from a folder in --data, built-in, or downloaded."""
    folder = context.data / name if context.data is not None else None
    if folder is not None and folder.exists():
        return copied_test(name, folder) or folder_test(folder)
    if name in BUILT_IN:
        return BUILT_IN[name]().test
    _check_download(context, name)
    return public_corpus(name, 0, context.cache).test


def _open_ids(context: TaskContext, path: Path, corpus: str | None) -> tuple[Tokenizer, Tokens]:
    spec = context.tokenizer
    if spec.startswith("bpe:"):
        raise InputError(
            f"{path} has ids of an existing vocabulary, not text for {spec}: "
            "give its tokenizer.json as --tokenizer"
        )
    nothing = Corpus(corpus or path.stem)
    tokenizer = load_tokenizer(spec, nothing, context.cache)
    tokens = file_tokens(path, tokenizer)
    return tokenizer, replace(tokens, name=corpus or tokens.name)
