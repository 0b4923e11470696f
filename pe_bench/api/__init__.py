"""The public interface for authors of encodings and tasks.

    from pe_bench.api import Encoding, InputError, ModelConfig

These names are stable; the modules that define them may move. Two submodules serve special tasks:
`pe_bench.api.data` reads, downloads and caches data, and `pe_bench.api.engine` measures the engine
itself.
"""

from pe_bench.config import IGNORE, ModelConfig, TrainConfig
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.generation import Sampling, generate, log_likelihoods
from pe_bench.decoder.model import Decoder, MakeEncoding
from pe_bench.encoding import Encoding, StatefulEncoding, Tunable
from pe_bench.errors import DataError, InputError, suggest
from pe_bench.layers import Layers
from pe_bench.positions import ALIGNED, Positions, State
from pe_bench.random_ids import random_ids
from pe_bench.registry.options import EncodingSpec, TaskSpec
from pe_bench.results.intervals import average, mean_of, ratio
from pe_bench.results.items import Items, RowKey
from pe_bench.results.journal import Journal
from pe_bench.results.measurement import Measurement, Status
from pe_bench.results.metrics import Metric
from pe_bench.results.splits import FAR, ID, OOD
from pe_bench.results.views import Column, Curve, Gallery, Headline, Heatmap, View
from pe_bench.sequences.curriculum import Stage, stage_at
from pe_bench.sequences.digits import carry
from pe_bench.sequences.effective_length import KEPT_FRACTION
from pe_bench.sequences.eval_points import FAR_FACTORS, EvalPoint, parse_lengths, scale_lengths
from pe_bench.sequences.length_generalization import LengthGeneralizationTask
from pe_bench.sequences.prompt_task import ZERO_SHOT, PromptTask
from pe_bench.sequences.rows import (
    END,
    FIRST,
    PAD,
    Mask,
    Segment,
    Sequences,
    Turn,
    collate,
    concatenate,
    pad_rows,
    stack,
)
from pe_bench.sequences.scoring import Scores, exact_match, teacher_forced
from pe_bench.system.console import info, progress
from pe_bench.task import (
    BASE,
    HELD_OUT_SEED,
    LARGE,
    SMALL,
    TINY,
    Batch,
    Evaluation,
    Preset,
    Task,
    TaskContext,
    Vocabulary,
)
from pe_bench.text.builtin_corpora import python_corpus, stdlib_corpus
from pe_bench.text.corpus import Corpus
from pe_bench.text.folder_corpus import folder_corpus
from pe_bench.text.load_tokenizer import load_tokenizer
from pe_bench.text.tokenizer import ByteTokenizer, TokenIds, Tokenizer
from pe_bench.text.word_tokenizer import WordTokenizer
from pe_bench.visibility import Visibility
from pe_bench.wrapper import Wrapper, join_ids, make_base, split_ids

__all__ = [
    "ALIGNED",
    "BASE",
    "END",
    "FAR",
    "FAR_FACTORS",
    "FIRST",
    "HELD_OUT_SEED",
    "ID",
    "IGNORE",
    "KEPT_FRACTION",
    "LARGE",
    "OOD",
    "PAD",
    "SMALL",
    "TINY",
    "ZERO_SHOT",
    "Batch",
    "ByteTokenizer",
    "Cache",
    "Column",
    "Corpus",
    "Curve",
    "DataError",
    "Decoder",
    "Encoding",
    "EncodingSpec",
    "EvalPoint",
    "Evaluation",
    "Gallery",
    "Headline",
    "Heatmap",
    "InputError",
    "Items",
    "Journal",
    "Layers",
    "LengthGeneralizationTask",
    "MakeEncoding",
    "Mask",
    "Measurement",
    "Metric",
    "ModelConfig",
    "Positions",
    "Preset",
    "PromptTask",
    "RowKey",
    "Sampling",
    "Scores",
    "Segment",
    "Sequences",
    "Stage",
    "State",
    "StatefulEncoding",
    "Status",
    "Task",
    "TaskContext",
    "TaskSpec",
    "TokenIds",
    "Tokenizer",
    "TrainConfig",
    "Tunable",
    "Turn",
    "View",
    "Visibility",
    "Vocabulary",
    "WordTokenizer",
    "Wrapper",
    "average",
    "carry",
    "collate",
    "concatenate",
    "exact_match",
    "folder_corpus",
    "generate",
    "info",
    "join_ids",
    "load_tokenizer",
    "log_likelihoods",
    "make_base",
    "mean_of",
    "pad_rows",
    "parse_lengths",
    "progress",
    "python_corpus",
    "random_ids",
    "ratio",
    "scale_lengths",
    "split_ids",
    "stack",
    "stage_at",
    "stdlib_corpus",
    "suggest",
    "teacher_forced",
]
