"""Reading TOML files that a user wrote."""

import tomllib
from pathlib import Path
from typing import Any

from pe_bench.errors import InputError
from pe_bench.system.files import read_regular

LIMIT = 2**20  # bytes


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        InputError: the file cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(read_regular(path, LIMIT).decode("utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{path} cannot be read: its values are nested too deeply") from None
