"""Everything that an encoding or a task imports, in one place that stays where it is.

    from pe_bench.api import Encoding, InputError, ModelConfig

Modules may move inside the package; these names do not.
"""

from pe_bench.config import ModelConfig, TrainConfig
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.generation import Sampling, generate, log_likelihoods
from pe_bench.decoder.model import IGNORE, Decoder
from pe_bench.encoding import Encoding, StatefulEncoding
from pe_bench.errors import DataError, InputError
from pe_bench.positions import Positions, State, random_ids
from pe_bench.registry.plugins import EncodingSpec
from pe_bench.results.journal import Journal
from pe_bench.results.schema import Figure, Headline, Measurement
from pe_bench.results.statistics import exact_match_rows, mean
from pe_bench.sequences.length_generalization import GeneratedTask
from pe_bench.sequences.rows import (
    END,
    FIRST,
    PAD,
    Ids,
    Mask,
    Part,
    Sequences,
    Turn,
    collate,
    join,
    stack,
)
from pe_bench.sequences.scoring import answer, decoding_tokens
from pe_bench.system.console import progress
from pe_bench.task import Batch, Preset, Setup, Task
from pe_bench.text.corpus import Corpus, folder_corpus, stdlib_corpus
from pe_bench.text.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer
from pe_bench.wrapper import Wrapper, join_ids, make_base, split_ids

__all__ = [
    "END",
    "FIRST",
    "IGNORE",
    "PAD",
    "Batch",
    "ByteTokenizer",
    "Cache",
    "Corpus",
    "DataError",
    "Decoder",
    "Encoding",
    "EncodingSpec",
    "Figure",
    "GeneratedTask",
    "Headline",
    "Ids",
    "InputError",
    "Journal",
    "Mask",
    "Measurement",
    "ModelConfig",
    "Part",
    "Positions",
    "Preset",
    "Sampling",
    "Sequences",
    "Setup",
    "State",
    "StatefulEncoding",
    "Task",
    "Tokenizer",
    "TrainConfig",
    "Turn",
    "Wrapper",
    "answer",
    "collate",
    "decoding_tokens",
    "exact_match_rows",
    "folder_corpus",
    "generate",
    "join",
    "join_ids",
    "load_tokenizer",
    "log_likelihoods",
    "make_base",
    "mean",
    "progress",
    "random_ids",
    "split_ids",
    "stack",
    "stdlib_corpus",
]
