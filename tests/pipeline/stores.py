"""A store of objects that speaks enough of S3 for Arrow's client: objects in memory, uploads in parts, listing, deleting."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

Objects = dict[str, bytes]


class Store(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: Objects = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()

    def files(self) -> list[str]:
        """Without the empty objects that stand for directories."""
        return [name for name in self.objects if not name.endswith("/")]

    def uri(self, path: str) -> str:
        """As `pyarrow.fs` takes it."""
        return f"s3://key:secret@{path}?scheme=http&endpoint_override=127.0.0.1:{self.server_port}&region=nowhere"


class Handler(BaseHTTPRequestHandler):
    """Path-style: /bucket/key."""

    protocol_version = "HTTP/1.1"
    server: Store

    def do_HEAD(self) -> None:
        found = self.server.objects.get(self.key)
        self.answer(404 if found is None and "/" in self.key else 200, found or b"", length=len(found or b""))

    def do_GET(self) -> None:
        found = self.server.objects.get(self.key)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if "list-type" in self.asked:
            self.answer(200, self.listed())
        elif found is None:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        elif wanted:
            first, last = int(wanted[1]), int(wanted[2] or len(found) - 1)
            self.answer(206, found[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{len(found)}"})
        else:
            self.answer(200, found)

    def do_PUT(self) -> None:
        data = self.body()
        with self.server.lock:
            if "partNumber" in self.asked:
                self.server.parts[self.asked["uploadId"]][int(self.asked["partNumber"])] = data
            else:
                self.server.objects[self.key] = data
        self.answer(200, b"", {"ETag": '"e"'})

    def do_POST(self) -> None:
        data = self.body().decode()
        with self.server.lock:
            if "uploads" in self.asked:
                number = str(len(self.server.parts))
                self.server.parts[number] = {}
                said = f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>"
            elif "delete" in self.asked:
                bucket = self.key.strip("/")
                for key in re.findall(r"<Key>(.*?)</Key>", data):
                    self.server.objects.pop(f"{bucket}/{unescape(key)}", None)
                said = "<DeleteResult></DeleteResult>"
            else:
                parts = self.server.parts.pop(self.asked["uploadId"])
                self.server.objects[self.key] = b"".join(parts[number] for number in sorted(parts))
                said = "<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"
        self.answer(200, said.encode())

    def do_DELETE(self) -> None:
        with self.server.lock:
            self.server.objects.pop(self.key, None)
        self.answer(204, b"")

    def listed(self) -> bytes:
        bucket, prefix, between = self.key.strip("/"), self.asked.get("prefix", ""), self.asked.get("delimiter", "")
        names = sorted(key.removeprefix(f"{bucket}/") for key in self.server.objects if key.startswith(f"{bucket}/"))
        files, directories = [], dict[str, None]()
        for name in (name for name in names if name.startswith(prefix)):
            below = name[len(prefix) :].split(between, 1) if between else [name]
            if len(below) == 2:
                directories[f"{prefix}{below[0]}{between}"] = None
            else:
                size = len(self.server.objects[f"{bucket}/{name}"])
                files.append(f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size></Contents>")
        told = [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in directories]
        count = f"<KeyCount>{len(files) + len(told)}</KeyCount><IsTruncated>false</IsTruncated>"
        return f"<ListBucketResult>{count}{''.join(files)}{''.join(told)}</ListBucketResult>".encode()

    @property
    def key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix("/")

    @property
    def asked(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query, keep_blank_values=True).items()}

    def body(self) -> bytes:
        """Arrow's client sends chunks with a checksum behind the last, and the whole of that may be in HTTP's own chunks."""
        if self.headers.get("Transfer-Encoding", "") == "chunked":
            data = b"".join(iter(self.chunk, b""))
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return data
        whole = b""
        while True:
            head, _, data = data.partition(b"\r\n")
            size = int(head.split(b";")[0], 16)
            if not size:
                return whole
            whole, data = whole + data[:size], data[size + 2 :]

    def chunk(self) -> bytes:
        data = self.rfile.read(int(self.rfile.readline().split(b";")[0], 16))
        self.rfile.readline()
        return data

    def answer(self, status: int, data: bytes, more: dict[str, str] | None = None, length: int | None = None) -> None:
        self.send_response(status)
        for name, value in (more or {}).items():
            self.send_header(name, value)
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def store() -> Iterator[Store]:
    made = Store()
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()
        thread.join()
