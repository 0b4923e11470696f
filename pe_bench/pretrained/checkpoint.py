"""A checkpoint folder: what it says about its model, and the model with any encoding in it."""

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pe_bench.config import ModelConfig
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError
from pe_bench.pretrained.llama_config import LlamaConfig, read_config
from pe_bench.pretrained.weights import (
    check_files,
    has_own_head,
    load_files,
    make_empty,
    sample_files,
)
from pe_bench.registry import plugins
from pe_bench.registry.options import EncodingSpec, show, split_spec
from pe_bench.text.tokenizer import BpeTokenizer

FILE = re.compile(r"[/\\]|\.py\b")
OF_LLAMA = "rope"
"""The encoding of a plain Llama."""

SCALING = "scaling"
"""Option whose own options a spec replaces together with it."""


@dataclass(frozen=True)
class Checkpoint:
    """A folder of `transformers`: config.json, safetensors, and usually tokenizer.json.

    Attributes:
        folder: where it is.
        config: what its config.json says.
    """

    folder: Path
    config: LlamaConfig

    @property
    def model(self) -> ModelConfig:
        """Shape of the model."""
        return self.config.model

    @property
    def encoding(self) -> str:
        """Spec of the encoding that the model was trained with.

        Raises:
            InputError: it names a file, which may hold any code.
        """
        spec = self.config.encoding
        if not spec:
            return self.spec(OF_LLAMA)
        if split_spec(spec)[0] not in plugins.names("encoding") or FILE.search(spec):
            raise InputError(
                f"{self.folder} has the encoding {spec}, of a file of its author's, and which code "
                "is run is for you to say: give the spec yourself"
            )
        return spec

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) that stands for the model: its config, and samples of its files."""
        digest = hashlib.sha256((self.folder / "config.json").read_bytes())
        digest.update(sample_files(self.folder))
        return digest.hexdigest()

    def spec(self, spec: str) -> str:
        """Return the spec of an encoding with the rotation of this checkpoint.

        The base is the checkpoint's where the encoding has one and the spec does not name it; so
        is the scaling with all of its options. The same holds for an encoding inside another one.
        """
        return with_rotation(spec, self.config)

    def load(
        self,
        spec: str | None = None,
        *,
        dtype: torch.dtype | None = torch.float32,
        model: ModelConfig | None = None,
        device: str = "cpu",
    ) -> Decoder:
        """Return the model, in evaluation mode.

        Parameters that both encodings have keep nothing of the checkpoint but what the decoder
        has: another encoding starts as its authors say, from torch's random numbers.

        Args:
            spec: of an encoding, taken as it is; None: the checkpoint's own.
            dtype: of the weights; None: as in the files.
            model: shape with other facts for encodings, such as the training length; None: the
                checkpoint's.
            device: where the weights are put, each as soon as it is read.

        Raises:
            InputError: an encoding that does not fit, files that are missing or damaged.
        """
        wanted = plugins.load("encoding", spec or self.encoding)
        decoder = make_empty(model or self.model, wanted.make)
        stored = wanted.label == self.config.encoding
        decoder.encodings.to(device)
        load_files(decoder, self.folder, dtype=dtype, with_encoding=stored, device=device)
        return decoder.eval()

    def check_files(self) -> None:
        """Check files of weights by their headers.

        Raises:
            InputError: one is missing or damaged, or weights are not those of the config.
        """
        empty = make_empty(self.model, plugins.load("encoding", self.encoding).make)
        check_files(empty, self.folder, with_encoding=bool(self.config.encoding))

    def tokenizer(self) -> BpeTokenizer:
        """Return the tokenizer of the model.

        Raises:
            InputError: there is none, or it has ids that the model does not have.
        """
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise InputError(
                f"{self.folder} has no tokenizer.json: copy that of the model into it, a "
                "tokenizer.model alone is not read"
            )
        name = f"{self.folder.resolve().name}/{path.name}"
        return BpeTokenizer(name, path.read_bytes(), model_size=self.model.vocab_size)


def open_checkpoint(folder: Path | str) -> Checkpoint:
    """Return a checkpoint folder; weights are read when they are asked for.

    Args:
        folder: of a Llama, Mistral or Qwen2 of `transformers`, or of what `save_checkpoint` wrote.

    Raises:
        InputError: it is not there, or of a model that the decoder cannot be.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: give that of a Hugging Face checkpoint")
    path = folder / "config.json"
    config = read_config(path)
    if config.model.tied_embeddings and has_own_head(folder):
        config = replace(config, model=replace(config.model, tied_embeddings=False))
    checkpoint = Checkpoint(folder, config)
    try:
        if not checkpoint.config.encoding:
            plugins.load("encoding", checkpoint.encoding).make(checkpoint.model, 0)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return checkpoint


def with_rotation(spec: str, config: LlamaConfig) -> str:
    """Return a spec with the base and the scaling of a Llama where it names none.

    Raises:
        InputError: the spec is wrong, or the encoding cannot rotate as the Llama does.
    """
    where, given = split_spec(spec)
    plugin = plugins.load("encoding", spec)
    found = plugin.cls.options_of_llama(config.rotation, config.length)
    if SCALING in given:
        found = {name: value for name, value in found.items() if name == "base"}
    for option in plugins.options_of(plugin.cls):
        if option.annotation is EncodingSpec:
            inside = EncodingSpec(given.get(option.name, option.default))
            given[option.name] = with_rotation(inside, config)
        elif option.name in found and option.name not in given:
            given[option.name] = show(found[option.name])
    nested = isinstance(spec, EncodingSpec)
    options = (":" if nested else ",").join(f"{name}={value}" for name, value in given.items())
    full = type(spec)(f"{where}:{options}" if options else where)
    if where in plugins.names("encoding"):
        full = type(spec)(plugins.load("encoding", full).label)
    return full.replace(",", ":") if nested else full
