"""Tokenizers by specification: bytes, a fitted BPE, a file, or the one of a checkpoint."""

import json
import re
from pathlib import Path

from pe_bench.errors import InputError
from pe_bench.system.cache_entries import mark_used
from pe_bench.system.files import write_atomic
from pe_bench.system.sealed import read_if_intact, read_sealed, write_sealed
from pe_bench.text.bpe_tokenizer import BpeTokenizer
from pe_bench.text.corpus import Corpus, Piece
from pe_bench.text.tokenizer import SPECIAL_NAMES, ByteTokenizer, Tokenizer

MIN_VOCAB = 300  # 256 bytes, the special tokens and some merges


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
