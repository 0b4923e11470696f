"""A Hugging Face checkpoint folder, and its model with any encoding."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pe_bench.config import ModelConfig
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError
from pe_bench.pretrained.layer_plan import with_layers
from pe_bench.pretrained.llama_config import WRONG_VALUES, LlamaConfig, read_config
from pe_bench.pretrained.rotation import OF_LLAMA, names_only_shipped, with_rotation
from pe_bench.pretrained.weight_files import has_own_head, sample_files
from pe_bench.pretrained.weights import check_files, load_files, make_empty
from pe_bench.registry import plugins
from pe_bench.registry.plugins import Plugin
from pe_bench.results.labels import plugin_name
from pe_bench.system.console import warn
from pe_bench.text.bpe_tokenizer import BpeTokenizer
from pe_bench.text.load_tokenizer import model_tokenizer


@dataclass(frozen=True)
class Checkpoint:
    """A folder of `transformers`: config.json, safetensors, and usually tokenizer.json.

    Attributes:
        folder: path of the folder.
        config: content of its config.json.
    """

    folder: Path
    config: LlamaConfig

    @property
    def model(self) -> ModelConfig:
        """Shape of the model."""
        return self.config.model

    @property
    def encoding(self) -> str:
        """Spec of the encoding of the trained model.

        Raises:
            InputError: the spec names a file, which may contain arbitrary code.
        """
        spec = self.config.encoding
        if not spec:
            return self.spec(plugin_name(self.config.layers) or OF_LLAMA)
        if not names_only_shipped(spec):
            raise InputError(
                f"{'the model' if self.folder == Path() else self.folder} names a file with code "
                f"as its encoding ({spec}), which is not run unless you give it: give {spec} with "
                "the path of the file as the spec, or as encoding_spec to from_pretrained"
            )
        return plugins.load("encoding", spec).label

    def contains(self, encoding: Plugin) -> bool:
        """Return whether the files contain the parameters of an encoding."""
        own = self.config.encoding
        if not own:
            return False
        return encoding.label == own or (
            names_only_shipped(own) and encoding.label == self.encoding
        )

    def compare_code(self, encoding: Plugin) -> None:
        """Warn if an encoding is that of the model with other options or another version."""
        own = self.config.encoding
        if encoding.label == own:
            version = self.config.encoding_version
            if version not in ("", encoding.version):
                warn(
                    f"the code of {encoding.given} has changed since the model was saved "
                    f"({version}, now {encoding.version}): its outputs may differ"
                )
        elif plugin_name(encoding.label) == plugin_name(own) and not names_only_shipped(own):
            warn(
                f"the encoding of the model is {own}, not {encoding.label}: its outputs may differ"
            )

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the config and of samples of the weight files."""
        digest = hashlib.sha256((self.folder / "config.json").read_bytes())
        digest.update(sample_files(self.folder))
        return digest.hexdigest()

    def spec(self, spec: str) -> str:
        """Return the spec of an encoding with the rotation of this checkpoint.

        If the spec does not set the base or the scaling of an encoding, they are taken from the
        checkpoint; the scaling is taken with all of its options. The same holds for an encoding
        inside another one. If layers of the checkpoint differ, `hybrid` gets all options that the
        spec does not set. A warning names encodings that keep another rotation or replace layers
        that differ.
        """
        layers = self.config.layers
        full, notes = with_rotation(with_layers(spec, layers), self.config)
        if plugin_name(layers) not in ("", plugin_name(spec)):
            notes.append(f"{spec} replaces the encoding of the model, which is {layers}")
        for note in notes:
            warn(note)
        return full

    def load(
        self,
        spec: str | None = None,
        *,
        dtype: torch.dtype | None = torch.float32,
        model: ModelConfig | None = None,
        device: str = "cpu",
    ) -> Decoder:
        """Return the model, in evaluation mode.

        The parameters of the checkpoint's encoding are loaded too. Another encoding is initialised
        as its authors describe, from torch's random numbers.

        Args:
            spec: spec of an encoding, used as given; None: the encoding of the checkpoint.
            dtype: dtype of the weights; None: as in the files.
            model: shape of the model with other values for encodings, such as the training length;
                None: the shape of the checkpoint.
            device: device of the weights; each is moved as soon as it is read.

        Raises:
            InputError: the encoding does not fit; files are missing or damaged.
        """
        wanted = plugins.load("encoding", spec or self.encoding)
        self.compare_code(wanted)
        decoder = make_empty(model or self.model, wanted.make)
        stored = self.contains(wanted)
        decoder.encodings.to(device)
        names = self.config.names
        load_files(
            decoder, self.folder, dtype=dtype, with_encoding=stored, device=device, names=names
        )
        return decoder.eval()

    def check_files(self) -> None:
        """Check the headers of the weight files.

        Raises:
            InputError: a file is missing or damaged, or the weights do not match the config.
        """
        empty = make_empty(self.model, plugins.load("encoding", self.encoding).make)
        stored = bool(self.config.encoding)
        check_files(empty, self.folder, with_encoding=stored, names=self.config.names)

    def tokenizer(self) -> BpeTokenizer:
        """Return the tokenizer of the model.

        Raises:
            InputError: the tokenizer is missing, or has ids that the model does not have.
        """
        return model_tokenizer(self.folder)


def open_checkpoint(folder: Path | str) -> Checkpoint:
    """Open a checkpoint folder; weights are read later.

    Args:
        folder: folder of a model of `transformers` of a known family, or of `save_checkpoint`.

    Raises:
        InputError: the folder is missing, or the decoder does not support the model.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(
            f"there is no folder {folder}: give the folder of a Hugging Face checkpoint"
        )
    path = folder / "config.json"
    config = read_config(path)
    if config.model.tied_embeddings and has_own_head(folder, config.names):
        config = replace(config, model=replace(config.model, tied_embeddings=False))
    checkpoint = Checkpoint(folder, config)
    try:
        if not checkpoint.config.encoding:
            plugins.load("encoding", checkpoint.encoding).make(checkpoint.model, 0)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except WRONG_VALUES as error:
        raise InputError(f"{path} has a value of the wrong type or size ({error})") from None
    return checkpoint
