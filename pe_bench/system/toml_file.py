"""Reading TOML files that a user wrote."""

import tomllib
from pathlib import Path
from typing import Any

from pe_bench.errors import InputError


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        InputError: the file cannot be read or is not TOML.
    """
    if path.exists() and not path.is_file():  # reading a pipe might never end
        raise InputError(f"{path} cannot be read (it is no regular file)")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{path} cannot be read: its values are nested too deeply") from None
