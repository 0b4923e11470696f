"""The engine itself, for tasks that measure encodings rather than trained models."""

from pe_bench.checks.costs import measure_costs
from pe_bench.checks.counting import count_products
from pe_bench.checks.encodings import examine
from pe_bench.checks.subject import Subject
from pe_bench.decoder.attention import Backend, record_backends
from pe_bench.decoder.attention_layers import AttentionLayers
from pe_bench.decoder.layer import AttentionLayer
from pe_bench.registry.plugins import load as load_plugin
from pe_bench.system.environment import is_out_of_memory, return_freed_memory

__all__ = [
    "AttentionLayer",
    "AttentionLayers",
    "Backend",
    "Subject",
    "count_products",
    "examine",
    "is_out_of_memory",
    "load_plugin",
    "measure_costs",
    "record_backends",
    "return_freed_memory",
]
