"""Downloads from a local server that replaces the hub."""

import hashlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pe_bench.errors import InputError
from pe_bench.text import download
from pe_bench.text.download import hub_file

BODY = bytes(range(256)) * 400
COMMIT = "c" * 40


@dataclass
class Hub:
    """The local server: its files, its planned failures, and the received requests."""

    endpoint: str = ""
    etag: str = hashlib.sha256(BODY).hexdigest()
    status: int = 200
    cuts: list[int] = field(default_factory=list)  # bytes to send before hanging up, per GET
    answers_gets: bool = True
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)

    def gets(self) -> list[str | None]:
        return [wanted for method, _, wanted in self.asked if method == "GET"]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(hub.status)

        def do_GET(self) -> None:
            body = self.answer(hub.status if hub.answers_gets else 500)
            self.wfile.write(body[: hub.cuts.pop(0)] if hub.cuts else body)

        def answer(self, status: int) -> bytes:
            wanted = self.headers["Range"]
            hub.asked.append((self.command, self.path, wanted))
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
            body = BODY[start:] if status == 200 else b""
            self.send_response(206 if wanted and status == 200 else status)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hub.etag}"')
            self.send_header("Content-Length", str(len(body)))
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{len(BODY) - 1}/{len(BODY)}")
            self.end_headers()
            return body

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    # With telemetry, the client would send a request to the real hub.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield hub
        server.shutdown()
        thread.join()


def get(hub: Hub, cache: Path) -> Path:
    return hub_file("owner/name", "sub/x.zip", cache=cache, endpoint=hub.endpoint)


def test_a_file_is_downloaded_once_and_needs_no_network_after(hub: Hub, tmp_path: Path) -> None:
    path = get(hub, tmp_path)
    assert path.read_bytes() == BODY
    assert [(method, url) for method, url, _ in hub.asked] == [
        ("HEAD", "/datasets/owner/name/resolve/main/sub/x.zip"),
        ("GET", f"/datasets/owner/name/resolve/{COMMIT}/sub/x.zip"),
    ]
    hub.asked.clear()
    assert get(hub, tmp_path) == path
    assert not hub.asked


def test_a_copy_that_was_damaged_is_downloaded_again(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = get(hub, tmp_path)
    path.write_bytes(BODY[:-1])
    assert get(hub, tmp_path).read_bytes() == BODY
    assert f"{path} has changed since it was written" in capsys.readouterr().err


def test_another_revision_is_another_file(hub: Hub, tmp_path: Path) -> None:
    main = get(hub, tmp_path)
    other = hub_file(
        "owner/name", "sub/x.zip", cache=tmp_path, revision="v2", endpoint=hub.endpoint
    )
    assert other != main
    assert ("HEAD", "/datasets/owner/name/resolve/v2/sub/x.zip", None) in hub.asked


def test_a_dropped_connection_is_resumed_within_the_call(hub: Hub, tmp_path: Path) -> None:
    hub.cuts = [5000]
    assert get(hub, tmp_path).read_bytes() == BODY
    assert hub.gets() == [None, "bytes=5000-"]


def test_a_broken_download_is_resumed_by_the_next_call(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.cuts = [5000]
    # The server is down when the client continues the download.
    monkeypatch.setattr(
        "huggingface_hub.file_download.time.sleep",
        lambda seconds: setattr(hub, "answers_gets", False),
    )
    with pytest.raises(InputError, match=r"stopped after 5,000 bytes \(HTTP status 500\)"):
        get(hub, tmp_path)
    hub.answers_gets = True
    hub.asked.clear()
    assert get(hub, tmp_path).read_bytes() == BODY
    assert hub.gets() == ["bytes=5000-"]


def test_a_wrong_checksum_is_refused_and_the_copy_deleted(hub: Hub, tmp_path: Path) -> None:
    right = hub.etag
    hub.etag = "0" * 64
    with pytest.raises(InputError, match=f"arrived damaged .checksum {right} instead of 000"):
        get(hub, tmp_path)
    assert not [*tmp_path.rglob("*.zip"), *tmp_path.rglob("*.part")]
    hub.etag = right
    assert get(hub, tmp_path).read_bytes() == BODY


def test_small_files_are_checked_by_their_git_name(hub: Hub, tmp_path: Path) -> None:
    hub.etag = hashlib.sha1(b"blob %d\0" % len(BODY) + BODY).hexdigest()
    assert get(hub, tmp_path).read_bytes() == BODY


@pytest.mark.parametrize(
    ("status", "reason"),
    [(401, "no such repository, or it needs a login"), (404, "not found"), (503, "status 503")],
)
def test_refusals_say_why(hub: Hub, tmp_path: Path, status: int, reason: str) -> None:
    hub.status = status
    with pytest.raises(InputError, match=rf"cannot download sub/x.zip from {hub.endpoint}.*") as e:
        get(hub, tmp_path)
    assert reason in str(e.value)
    assert "give --data DIR with x.zip, or connect to a network" in str(e.value)


def test_no_network(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"refused.*give --data DIR with x\.zip"):
        hub_file("owner/name", "x.zip", cache=tmp_path, endpoint="http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="HF_HUB_OFFLINE is set"):
        get(hub, tmp_path)
    assert not hub.asked


@pytest.mark.slow
def test_a_silent_hub_is_given_up_on(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(InputError, match="timed out"):
            hub_file("owner/name", "x.zip", cache=tmp_path, endpoint=endpoint)
