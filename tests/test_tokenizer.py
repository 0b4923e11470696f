import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers

from pe_bench.errors import InputError, SavingError
from pe_bench.tasks.scrolls.prompts import PaperFormat, StrictFormat
from pe_bench.text.bpe_tokenizer import BpeTokenizer
from pe_bench.text.corpus import Corpus
from pe_bench.text.folder_corpus import folder_corpus
from pe_bench.text.load_tokenizer import load_tokenizer, model_tokenizer
from pe_bench.text.tokenizer import ByteTokenizer, Tokenizer
from pe_bench.text.tokenizer_files import tokenizer_files

Json = dict[str, Any]
ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("PE_BENCH_DATA", ROOT.parent / "shared" / "data"))
TRAIN = "The quick brown fox — déjà vu — jumps over the lazy dog; naïve café.\n" * 40
TRAIN += "Pack my box with five dozen liquor jugs, said the wizard to the sphinx.\n" * 40
SPACE = "\u2581"
TEXTS = [
    "",
    "plain words",
    "  two spaces, a tab\tand\r\nline ends\n\n",
    "naïve café, 한국어, Ωμέγα, 𝔘𝔫𝔦, 👩‍👩‍👧, \x00, \ufeff",
    "cafe\u0301 decomposed, \u212b and \ufb01",
    "<s>not special</s><pad><|endoftext|>[SEP]",
    f"no space{SPACE}but a sign {SPACE}{SPACE} and{SPACE}",
    "spaces around  <mask>  an added token",
    "one space <mask> on each side",
]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    for part, text in (("train", TRAIN), ("test", "zygomorphic " * 200)):
        (tmp_path / "text" / part).mkdir(parents=True)
        (tmp_path / "text" / part / "a.txt").write_text(text, encoding="utf-8")
    return folder_corpus(tmp_path / "text")


def fitted_json(corpus: Corpus, folder: Path) -> Json:
    load_tokenizer("bpe:320", corpus, folder)
    (path,) = (folder / "tokenizers").glob("*.json")
    file: Json = json.loads(path.read_bytes())
    return file


def added(index: int, content: str, special: bool = True) -> Json:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": content, "special": special, **flags}


def gpt_like(file: Json) -> Json:
    """Return a byte-level vocabulary with a prefix space, NFC, truncation and padding."""
    size = len(file["model"]["vocab"])
    extra = [added(size, "<|endoftext|>"), added(size + 2, "  ", special=False)]
    extra += [added(size + 3, "<mask>", special=False) | {"lstrip": True, "rstrip": True}]
    extra += [added(size + 4, "한국어", special=False)]
    fixed = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None}
    pad = {"pad_id": 0, "pad_type_id": 0, "pad_token": "!"}
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    parts = [{"type": "Digits", "individual_digits": True}, file["pre_tokenizer"]]
    parts[1]["add_prefix_space"] = True
    return file | {
        "added_tokens": extra,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": parts},
        "truncation": cut,
        "padding": fixed | pad,
    }


def llama_like(metaspace: bool) -> Json:
    """Return a vocabulary of words with a visible space, with bytes and a prefix space."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += [SPACE, *"plainwords", "é", "pl", "pla", f"{SPACE}w", f"{SPACE}wo"]
    words += [f"{SPACE}{SPACE}"]
    vocab = {word: index for index, word in enumerate(dict.fromkeys(words))}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    joined = [{"type": "ByteFallback"}, {"type": "Fuse"}]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    prepend = {"type": "Prepend", "prepend": SPACE}
    before = {"type": "Sequence", "normalizers": [prepend, replace]}
    first = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
    model = {"type": "BPE", "vocab": vocab, "byte_fallback": True, "unk_token": "<unk>"}
    return {
        "version": "1.0",
        "model": model
        | {"merges": ["p l", "pl a", f"{SPACE} w", f"{SPACE}w o", f"{SPACE} {SPACE}"]},
        "added_tokens": [
            *(added(index, word) for index, word in enumerate(words[:3])),
            added(len(vocab) - 1, f"{SPACE}{SPACE}", special=False),  # as in Gemma's
        ],
        "normalizer": None if metaspace else before,
        "pre_tokenizer": first if metaspace else None,
        "decoder": {"type": "Sequence", "decoders": [back, *joined, strip]},
    }


@pytest.fixture(params=["bytes", "bpe:320", "gpt", "llama", "metaspace"])
def tokenizer(request: pytest.FixtureRequest, corpus: Corpus, tmp_path: Path) -> Tokenizer:
    if request.param in ("bytes", "bpe:320"):
        return load_tokenizer(request.param, corpus, tmp_path / "cache")
    if request.param == "gpt":
        file = gpt_like(fitted_json(corpus, tmp_path / "other"))
    else:
        file = llama_like(metaspace=request.param == "metaspace")
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    return load_tokenizer(str(path), corpus, tmp_path / "cache")


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_stand_for_exactly_the_bytes(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert tokenizer.byte_lengths[ids].sum() == len(text.encode())
    assert tokenizer.decode(ids) == text
    assert np.array_equal(tokenizer.encode(text.encode()), ids)


def test_special_ids(tokenizer: Tokenizer) -> None:
    special = [tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.sep]
    assert len(set(special)) == 4
    assert len(tokenizer.byte_lengths) == tokenizer.vocab_size
    assert not tokenizer.byte_lengths[special].any()
    for text in TEXTS:
        assert not np.isin(tokenizer.encode(text), special).any()


def test_decode_drops_what_is_not_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("café")
    unknown = [tokenizer.vocab_size, -100]
    assert tokenizer.decode([tokenizer.bos, *ids, tokenizer.eos, tokenizer.pad, *unknown]) == "café"
    assert tokenizer.decode([]) == ""
    half = tokenizer.encode("\U0001d518")[:2]  # two of four bytes
    assert set(tokenizer.decode(half)) == {"\ufffd"}


def test_an_unpaired_surrogate_is_replaced(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud83db")) == "a?b"


def test_bytes_are_their_own_ids() -> None:
    tokenizer = ByteTokenizer()
    assert (tokenizer.name, tokenizer.vocab_size) == ("bytes", 260)
    assert tokenizer.encode(bytes(range(256))).tolist() == list(range(256))


def test_bpe_is_fitted_to_the_train_split_once(corpus: Corpus, tmp_path: Path) -> None:
    corpus.test.files[0].path.unlink()  # reading it would fail
    first = load_tokenizer("bpe:320", corpus, tmp_path / "cache")
    assert (first.name, first.vocab_size) == ("bpe:320", 320)
    assert len(first.encode(TRAIN)) < len(TRAIN.encode()) / 2
    again = load_tokenizer("bpe:320", corpus, tmp_path / "elsewhere")
    assert again.fingerprint == first.fingerprint
    corpus.train[0].files[0].path.unlink()
    cached = load_tokenizer("bpe:320", corpus, tmp_path / "cache")
    assert cached.fingerprint == first.fingerprint
    other = load_tokenizer("bpe:321", corpus, tmp_path / "cache")  # from the cached text
    assert other.fingerprint != first.fingerprint
    with pytest.raises(InputError, match=r"a\.txt differs"):
        load_tokenizer("bpe:320", corpus, tmp_path / "new")
    file, _ = sorted((tmp_path / "cache" / "tokenizers").glob("*.json"))
    assert corpus.train[0].fingerprint[:16] in file.name and tokenizers.__version__ in file.name


def test_a_damaged_vocabulary_is_fitted_again(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = load_tokenizer("bpe:320", corpus, tmp_path)
    (path,) = (tmp_path / "tokenizers").glob("*.json")
    path.write_bytes(path.read_bytes().replace(b"\xc4\xa0", b"x", 1))
    assert load_tokenizer("bpe:320", corpus, tmp_path).fingerprint == first.fingerprint
    assert f"{path} has changed since it was written" in capsys.readouterr().err


def test_an_id_beyond_all_reason_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    file = fitted_json(corpus, tmp_path)
    file["model"]["vocab"]["!"] = 4_000_000_000
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    with pytest.raises(InputError, match="has the id 4,000,000,000, but ids must be below"):
        load_tokenizer(str(path), corpus, tmp_path)


def test_a_small_text_gives_a_smaller_vocabulary(corpus: Corpus, tmp_path: Path) -> None:
    assert 330 < load_tokenizer("bpe:8192", corpus, tmp_path).vocab_size < 500


def test_special_tokens_of_a_file_are_kept(corpus: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "some-model" / "tokenizer.json"
    path.parent.mkdir()
    path.write_text(json.dumps(llama_like(metaspace=False)), encoding="utf-8")
    tokenizer = load_tokenizer(str(path), corpus, tmp_path)
    size = tokenizers.Tokenizer.from_file(str(path)).get_vocab_size()
    found = (tokenizer.bos, tokenizer.eos, tokenizer.pad, tokenizer.sep)
    assert found == (1, 2, size, size + 1)
    assert tokenizer.vocab_size == size + 2
    assert tokenizer.name == "some-model/tokenizer.json"
    pieces = ["pla", "i", "n", f"{SPACE}wo", "r", "d", "s"]
    vocab = tokenizers.Tokenizer.from_file(str(path)).get_vocab()
    assert tokenizer.encode("plain words").tolist() == [vocab[piece] for piece in pieces]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("foo", "no tokenizer 'foo'"),
        ("bpe:abc", "bpe:SIZE such as bpe:8192"),
        ("bpe:", "bpe:SIZE"),
        ("bpe:-400", "bpe:SIZE"),
        ("bpe:299", "at least 300"),
        ("missing/tokenizer.json", "existing tokenizer.json"),
    ],
)
def test_unknown_specification(spec: str, message: str, corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        load_tokenizer(spec, corpus, tmp_path)


@pytest.mark.parametrize("content", ["", "no json", "[]", "{}", '{"model": {}}', "\x00"])
def test_not_a_tokenizer_file(content: str, corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "some.json").write_text(content)
    with pytest.raises(InputError, match=r"some.json is not a usable tokenizer.json"):
        load_tokenizer(str(tmp_path / "some.json"), corpus, tmp_path)


@pytest.mark.parametrize("fault", ["lower case", "words", "no bytes", "empty"])
def test_a_tokenizer_that_loses_bytes(fault: str, corpus: Corpus, tmp_path: Path) -> None:
    file = fitted_json(corpus, tmp_path)
    if fault == "lower case":
        file["normalizer"] = {"type": "Lowercase"}
    elif fault == "words":
        file["pre_tokenizer"] = {"type": "Whitespace"}
        file["model"] = {"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"}
    elif fault == "no bytes":
        file = llama_like(metaspace=False)
        file["model"]["byte_fallback"] = False
    else:
        file["model"] = {"type": "BPE", "vocab": {}, "merges": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    with pytest.raises(InputError, match="bits per byte need a byte-level tokenizer"):
        load_tokenizer(str(tmp_path / "tokenizer.json"), corpus, tmp_path)


def test_a_tokenizer_without_some_bytes(corpus: Corpus, tmp_path: Path) -> None:
    """It is accepted, as for SmolLM2, and a text with such a byte is refused."""
    file = fitted_json(corpus, tmp_path)
    without = ["\u0104", "\u0106", "ñ"]  # bytes 0x04, 0x06 and 0xf1
    vocab = [token for token in file["model"]["vocab"] if not set(without) & set(token)]
    file["model"]["vocab"] = {token: index for index, token in enumerate(vocab)}
    file["model"]["merges"] = []
    (tmp_path / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer.json"), corpus, tmp_path)
    text = "naïve \x00\x05 \U0001f600 \U00100000"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    for lost, where in (("ab\x04", "0x04 at byte 2"), ("é\U00040000", "0xf1 at byte 2")):
        with pytest.raises(InputError, match=f"the text has the byte {where}, for which"):
            tokenizer.encode(lost)
    del file["model"]["vocab"]["A"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    with pytest.raises(InputError, match="bits per byte need a byte-level tokenizer"):
        load_tokenizer(str(tmp_path / "tokenizer.json"), corpus, tmp_path)


def test_bpe_refuses_bytes_that_are_not_utf8(corpus: Corpus, tmp_path: Path) -> None:
    tokenizer = load_tokenizer("bpe:300", corpus, tmp_path)
    with pytest.raises(InputError, match="not UTF-8 at byte 1"):
        tokenizer.encode(b"a\xff")


def test_a_cache_that_cannot_be_written(corpus: Corpus) -> None:
    with pytest.raises(SavingError, match="cannot save"):
        load_tokenizer("bpe:300", corpus, corpus.train[0].files[0].path)


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason=f"no sample data in {DATA}")
def test_real_text(tmp_path: Path) -> None:
    corpus = folder_corpus(DATA / "proofpile")
    tokenizer = load_tokenizer("bpe:2000", corpus, tmp_path)
    for text in corpus.test.documents(tmp_path)["text"]:
        ids = tokenizer.encode(text)
        assert tokenizer.byte_lengths[ids].sum() == len(text.encode())
        assert len(ids) < len(text) / 1.8


@pytest.mark.slow
def test_import_is_cheap() -> None:
    late = "{'tokenizers', 'torch', 'pandas'} & set(sys.modules)"
    code = f"import sys, pe_bench.text.tokenizer; sys.exit(bool({late}))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def with_words(*words: str) -> Json:
    """Return a Llama-like vocabulary with additional words."""
    file = llama_like(metaspace=False)
    vocab = file["model"]["vocab"]
    vocab |= {word: len(vocab) + index for index, word in enumerate(words)}
    return file


def texts(tokenizer: Tokenizer, ids: tuple[int, ...]) -> list[str]:
    return [tokenizer.decode([index]) for index in ids]


SENTENCES = ["plain words", " words", "  w", "Yes", "é\n wo", "", "</s> w", "w" * 3]


@pytest.mark.parametrize("layout", ["llama", "metaspace", "gpt"])
def test_a_text_is_encoded_as_by_the_library(layout: str, corpus: Corpus, tmp_path: Path) -> None:
    """Llama's files put a space before every text."""
    if layout == "gpt":
        file = gpt_like(fitted_json(corpus, tmp_path / "other"))
        file |= {"truncation": None, "padding": None}
    else:
        file = llama_like(metaspace=layout == "metaspace")
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    library = tokenizers.Tokenizer.from_file(str(path))
    library.encode_special_tokens = True
    found = load_tokenizer(str(path), corpus, tmp_path)
    for text in SENTENCES:
        expected = library.encode(text, add_special_tokens=False).ids
        assert found.encode_text(text).tolist() == expected, text
    alone = found.encode_text("words").tolist()
    assert alone != found.encode("words").tolist()
    if layout != "gpt":  # the word as it is inside a text
        assert found.encode("plain words").tolist()[-len(alone) :] == alone


def test_outputs_of_both_protocols_begin_as_the_library_writes_them(
    corpus: Corpus, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(llama_like(metaspace=False)), encoding="utf-8")
    found = load_tokenizer(str(path), corpus, tmp_path)
    word = tokenizers.Tokenizer.from_file(str(path)).get_vocab()[f"{SPACE}wo"]
    for form in (StrictFormat(found), PaperFormat(found)):
        output = form.output("words", 9)
        assert word in output[:2] and found.decode(output).strip() == "words"
        assert word == form.prompt("words", 9, summary=False, training=True)[1]


def test_digits_and_ends_of_every_tokenizer(tokenizer: Tokenizer) -> None:
    assert sorted(texts(tokenizer, tokenizer.digit_ids)) == list("0123456789")
    assert sorted(texts(tokenizer, tokenizer.separator_ids))[:2] == ["\n", "."]
    text = "In 1024, or 7.5\nyears. So"
    ids = tokenizer.encode(text).tolist()
    assert [tokenizer.decode([i]) for i in ids if i in tokenizer.digit_ids] == list("102475")
    assert sum(i in tokenizer.separator_ids for i in ids) == 3


def test_digits_and_ends_of_bytes() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.digit_ids == tuple(range(48, 58))
    assert tokenizer.separator_ids == (10, 46)


def test_a_digit_is_one_digit_with_or_without_a_space(corpus: Corpus, tmp_path: Path) -> None:
    words = ["12", f"{SPACE}3", f"{SPACE}{SPACE}4", "5", f"{SPACE}67", "8.", "x9", "٣", "²", SPACE]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(with_words(*words)), encoding="utf-8")
    found = load_tokenizer(str(path), corpus, tmp_path)
    # Each digit has a token of its byte as well.
    assert sorted(texts(found, found.digit_ids)) == sorted([*"0123456789", " 3", "5"])


def test_an_end_is_a_full_stop_or_newline_at_the_end(corpus: Corpus, tmp_path: Path) -> None:
    words = ["e.", f"{SPACE}.", "...", ".\n", "\n\n", "\n ", ".a", "。", "?", ":", ".)"]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(with_words(*words)), encoding="utf-8")
    found = load_tokenizer(str(path), corpus, tmp_path)
    ends = ["\n", ".", "e.", " .", "...", ".\n", "\n\n"]
    assert sorted(texts(found, found.separator_ids)) == sorted(ends)


def test_special_tokens_are_neither_digits_nor_ends(corpus: Corpus, tmp_path: Path) -> None:
    file = gpt_like(fitted_json(corpus, tmp_path))
    size = len(file["model"]["vocab"])
    file["added_tokens"] += [added(size + 3, " 7"), added(size + 4, "[END].")]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    found = load_tokenizer(str(path), corpus, tmp_path)
    assert max(found.digit_ids + found.separator_ids) < size


def export(tokenizer: Tokenizer, folder: Path, **ids: int | list[int]) -> Path:
    """Write the files of a model with a tokenizer."""
    folder.mkdir()
    for name, content in tokenizer_files(tokenizer).items():
        (folder / name).write_bytes(content)
    config = {"vocab_size": tokenizer.vocab_size, "model_type": "llama", **ids}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.slow
def test_exported_files_have_the_special_tokens(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = export(tokenizer, tmp_path / "model")
    own = model_tokenizer(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    special = (tokenizer.bos, tokenizer.eos, tokenizer.pad, tokenizer.sep)
    assert (own.bos, own.eos, own.pad, own.sep) == special
    found = (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id, theirs.sep_token_id)
    assert found == special and len(theirs) <= tokenizer.vocab_size
    for text in SENTENCES:
        ids = tokenizer.encode_text(text).tolist()
        assert own.encode_text(text).tolist() == ids
        if "</s>" not in text:  # the library reads it as the special token
            assert theirs.encode(text, add_special_tokens=False) == ids
    again = export(own, tmp_path / "again")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_special_tokens_are_those_of_the_config(corpus: Corpus, tmp_path: Path) -> None:
    """They may have unknown names, as in DeepSeek, and differ from the known names."""
    file = fitted_json(corpus, tmp_path / "other")
    size = len(file["model"]["vocab"])
    names = ["<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\uff5c>", "</s>"]
    file["added_tokens"] = [added(size + i, name) for i, name in enumerate(names)]
    content = json.dumps(file).encode()

    def read(**ids: int | list[int] | None) -> BpeTokenizer:
        config = {"vocab_size": size + 3, **ids}
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "tokenizer.json").write_bytes(content)
        return model_tokenizer(tmp_path)

    plain = read()
    assert (plain.bos, plain.eos) == (size + 2, size + 2)
    about: dict[str, Any] = {"bos_token": {"content": names[0]}, "eos_token": names[1]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    named = read()
    assert (named.bos, named.eos) == (size, size + 1)
    assert read(eos_token_id=size + 2).eos == size + 2  # the config has precedence
    wrong: list[Any] = [{"eos_token": "absent"}, {"eos_token": 7}, []]
    for damaged in wrong:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(damaged))
        assert read().eos == plain.eos
    given = read(bos_token_id=size, eos_token_id=[size + 1, size + 2])
    assert (given.bos, given.eos, given.sep) == (size, size + 1, size + 1)
    assert given.fingerprint != plain.fingerprint  # documents end in another id
    for ids in ({"eos_token_id": size + 2}, {"bos_token_id": None}, {"bos_token_id": 7}):
        same = read(**ids)  # 7 is text
        assert (same.bos, same.eos) == (plain.bos, plain.eos)
        assert same.fingerprint == plain.fingerprint
