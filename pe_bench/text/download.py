"""Download files of dataset repositories from the Hugging Face hub: resumable and verified.

`datasets` and `hf_hub_download` of huggingface_hub 2.4 discard an interrupted download, which is
too expensive for files of many gigabytes. This module uses parts of huggingface_hub.
"""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.errors import DataError
from pe_bench.system.cache_entries import mark_used
from pe_bench.system.locks import locked
from pe_bench.system.sealed import read_if_intact, read_sealed, write_sealed

if TYPE_CHECKING:
    from huggingface_hub import HfFileMetadata

_TIMEOUT_S = 10


def hub_file(
    repo: str,
    filename: str,
    *,
    cache: Path,
    revision: str = "main",
    endpoint: str | None = None,
) -> Path:
    """Return a local copy of a file, downloaded at most once.

    A copy gets its final name only after its checksum has been verified, and is verified again
    without a network. The next call continues an interrupted download.

    Args:
        repo: dataset repository, `owner/name`.
        filename: path inside the repository.
        cache: folder; copies are at `<cache>/<owner>--<name>/<revision>/<filename>`.
        revision: branch, tag or commit. A branch is resolved only for the first download.
        endpoint: address of the hub; default is the `HF_ENDPOINT` variable or the public hub.

    Raises:
        DataError: the hub cannot be reached or refuses, or the copy is damaged.
    """
    target = hub_path(repo, filename, cache, revision)
    if not _is_whole(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(Path(f"{target}.lock"), f"the same download of {filename}"):
            if not target.exists():  # another process may have been faster
                _download(repo, filename, revision, endpoint, target)
    mark_used(target)
    return target


def _is_whole(target: Path) -> bool:
    """Return whether there is an intact copy; remove a damaged one."""
    seal = _seal(target)
    if seal.exists():
        return read_if_intact(lambda: read_sealed(seal, owner=target.name), keep=False) is not None
    return target.exists()


def _seal(target: Path) -> Path:
    return target.with_name(f"{target.name}.seal")


def hub_path(repo: str, filename: str, cache: Path, revision: str) -> Path:
    """Return the path of a copy of `hub_file`."""
    return cache / repo.replace("/", "--") / revision / filename


def hub_content(
    repo: str, filename: str, *, revision: str = "main", endpoint: str | None = None
) -> "HfFileMetadata":
    """Return the metadata of a file on the hub: `size`, checksum (`etag`) and `commit_hash`.

    Raises:
        DataError: the hub cannot be reached or refuses.
    """
    from huggingface_hub import get_hf_file_metadata

    where = _address(repo, endpoint)
    # The clauses are broad, because the errors of the hub's client come from an HTTP library that
    # differs between versions of the client.
    try:
        url = _url(repo, filename, revision, endpoint)
        content = get_hf_file_metadata(url, timeout=_TIMEOUT_S)
    except Exception as error:
        raise DataError(
            f"cannot download {filename} from {where} ({_reason(error)}): "
            f"give --data DIR with {Path(filename).name}, or connect to a network"
        ) from error
    if not content.etag or not content.commit_hash:
        raise DataError(f"{where} has no checksum for {filename}: it is not a dataset hub")
    return content


def _address(repo: str, endpoint: str | None) -> str:
    from huggingface_hub import constants

    return f"{endpoint or constants.ENDPOINT}/datasets/{repo}"


def _url(repo: str, filename: str, revision: str, endpoint: str | None) -> str:
    from huggingface_hub import hf_hub_url

    return hf_hub_url(repo, filename, repo_type="dataset", revision=revision, endpoint=endpoint)


def _download(repo: str, filename: str, revision: str, endpoint: str | None, target: Path) -> None:
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    where = _address(repo, endpoint)
    remote = hub_content(repo, filename, revision=revision, endpoint=endpoint)
    assert remote.etag and remote.commit_hash  # checked by `hub_content`
    partial = target.with_name(f"{target.name}.{remote.etag[:16]}.part")
    try:
        with partial.open("ab") as file:
            http_get(
                _url(repo, filename, remote.commit_hash, endpoint),
                file,
                resume_size=file.tell(),
                # Ranges of a compressed stream cannot be joined.
                headers={**build_hf_headers(), "Accept-Encoding": "identity"},
                expected_size=remote.size,
                displayed_filename=target.name,
            )
    except Exception as error:
        raise DataError(
            f"the download of {filename} from {where} stopped after "
            f"{partial.stat().st_size:,} bytes ({_reason(error)}): run again to continue it"
        ) from error

    found = _checksum(partial, like=remote.etag)
    if found != remote.etag:
        partial.unlink()
        raise DataError(
            f"{filename} from {where} arrived damaged (checksum {found} instead of {remote.etag}) "
            f"and was deleted: run again"
        )
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    _seal(target).unlink(missing_ok=True)
    partial.replace(target)
    write_sealed(_seal(target), {"etag": remote.etag}, owner=target.name, files=[target])


def _checksum(path: Path, *, like: str) -> str:
    """Return the hub's checksum: SHA-256 for large files, git's SHA-1 of a blob for others."""
    if len(like) == 64:
        digest: Any = "sha256"
    else:
        header = f"blob {path.stat().st_size}\0".encode()

        def digest() -> Any:
            return hashlib.sha1(header)

    with path.open("rb") as file:
        return hashlib.file_digest(file, digest).hexdigest()


def _reason(error: Exception) -> str:
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        known = {401: "there is no such repository, or it needs a login", 404: "not found there"}
        return known.get(status, f"HTTP status {status}")
    return str(error).splitlines()[0] if str(error) else type(error).__name__
