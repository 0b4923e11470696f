"""Files of dataset repositories on the Hugging Face hub: resumed, verified, then kept.

`datasets` begins a file anew after an interruption, and those of SCROLLS have many gigabytes.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from pe_bench.errors import DataError

_TIMEOUT_S = 10


def hub_file(
    repo: str,
    filename: str,
    *,
    cache: Path,
    revision: str = "main",
    endpoint: str | None = None,
) -> Path:
    """Returns a local copy of a file, downloaded at most once.

    A copy gets its final name only after its checksum was found right, so a file under that name
    needs neither a network nor another look. What an interrupted download left is continued by
    the next call.

    Args:
        repo: Dataset repository, `owner/name`.
        filename: Path inside the repository.
        cache: Copies are kept at `<cache>/<owner>--<name>/<revision>/<filename>`.
        revision: Branch, tag or commit. A branch is looked up for the first download only.
        endpoint: Address of the hub; default is the `HF_ENDPOINT` variable or the public hub.

    Raises:
        DataError: The hub cannot be reached or refuses, or the copy is damaged.
    """
    target = hub_path(repo, filename, cache, revision)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not target.exists():  # another process may have been faster
                _download(repo, filename, revision, endpoint, target)
    return target


def hub_path(repo: str, filename: str, cache: Path, revision: str) -> Path:
    """Return where `hub_file` keeps a copy."""
    return cache / repo.replace("/", "--") / revision / filename


def hub_contents(
    repo: str, files: Sequence[str], *, revision: str = "main", endpoint: str | None = None
) -> dict[str, tuple[int, str]]:
    """Return size and SHA-256 of files of a dataset repository without downloading them.

    Raises:
        DataError: The hub cannot be reached or refuses, or lacks a file.
    """
    from huggingface_hub import HfApi, RepoFile

    if not files:
        return {}
    try:
        found = HfApi(endpoint=endpoint).get_paths_info(
            repo, list(files), revision=revision, repo_type="dataset"
        )
    except Exception as error:
        raise _refused(repo, files[0], endpoint, _reason(error)) from error
    contents = {}
    for file in found:
        if isinstance(file, RepoFile) and file.lfs:  # as every file of some size is
            contents[file.path] = file.size, file.lfs.sha256
    for name in files:
        if name not in contents:
            raise _refused(repo, name, endpoint, "not found there")
    return contents


def _refused(repo: str, filename: str, endpoint: str | None, reason: str) -> DataError:
    from huggingface_hub import constants

    where = f"{endpoint or constants.ENDPOINT}/datasets/{repo}"
    return DataError(
        f"cannot download {filename} from {where} ({reason}): "
        f"give --data DIR with {Path(filename).name}, or connect to a network"
    )


def _download(repo: str, filename: str, revision: str, endpoint: str | None, target: Path) -> None:
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    # `hf_hub_download` of huggingface_hub 2.4 throws away what it has when it is interrupted, too
    # much to lose with files of many gigabytes; its parts are used here instead.
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    def url_at(revision: str) -> str:
        return hf_hub_url(repo, filename, repo_type="dataset", revision=revision, endpoint=endpoint)

    where = f"{endpoint or constants.ENDPOINT}/datasets/{repo}"
    # The hub client's errors come from an HTTP library that changes between its versions, hence
    # the two broad clauses.
    try:
        remote = get_hf_file_metadata(url_at(revision), timeout=_TIMEOUT_S)
    except Exception as error:
        raise _refused(repo, filename, endpoint, _reason(error)) from error
    if not remote.etag or not remote.commit_hash:
        raise DataError(f"{where} gives no checksum for {filename}: it is not a dataset hub")

    partial = target.with_name(f"{target.name}.{remote.etag[:16]}.part")
    try:
        with partial.open("ab") as file:
            http_get(
                url_at(remote.commit_hash),
                file,
                resume_size=file.tell(),
                # Ranges of a compressed stream would not fit together.
                headers={**build_hf_headers(), "Accept-Encoding": "identity"},
                expected_size=remote.size,
                displayed_filename=target.name,
            )
    except Exception as error:
        raise DataError(
            f"the download of {filename} from {where} broke off after "
            f"{partial.stat().st_size:,} bytes ({_reason(error)}): run again to continue it"
        ) from error

    found = _checksum(partial, like=remote.etag)
    if found != remote.etag:
        partial.unlink()
        raise DataError(
            f"{filename} from {where} arrived damaged (checksum {found}, should be {remote.etag}) "
            f"and was deleted: run again"
        )
    partial.replace(target)


def _checksum(path: Path, *, like: str) -> str:
    """The hub names big files by SHA-256 of the content, others by git's SHA-1 of a blob."""
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
        known = {401: "no such repository, or it needs a login", 404: "not found there"}
        return known.get(status, f"HTTP status {status}")
    return str(error).splitlines()[0] if str(error) else type(error).__name__
