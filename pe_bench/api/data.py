"""Files of data: download, read, check, convert to Arrow, and cache with checksums."""

from pe_bench.system.files import write_atomic
from pe_bench.system.sealed import read_if_intact, read_sealed, write_sealed
from pe_bench.text.arrow import keep_rows, keep_tables, quiet_library
from pe_bench.text.corpus import Piece
from pe_bench.text.document_files import (
    Opener,
    encodable,
    naming_damage,
    read_json_lines,
    refuse_bomb,
)
from pe_bench.text.download import hub_content, hub_file, hub_path
from pe_bench.text.folder_corpus import folder_test
from pe_bench.text.text_files import TextFile, read_files
from pe_bench.text.unchanged import MappedFiles, unchanged

__all__ = [
    "MappedFiles",
    "Opener",
    "Piece",
    "TextFile",
    "encodable",
    "folder_test",
    "hub_content",
    "hub_file",
    "hub_path",
    "keep_rows",
    "keep_tables",
    "naming_damage",
    "quiet_library",
    "read_files",
    "read_if_intact",
    "read_json_lines",
    "read_sealed",
    "refuse_bomb",
    "unchanged",
    "write_atomic",
    "write_sealed",
]
