"""Google's answers where the emulator's differ: a proxy before the emulator, and Cloud Storage over a folder.

Shapes of answers: BigQuery API reference, `jobs` (`Job`, `ErrorProto`) and "Error messages"; Cloud Storage JSON API,
`objects.insert` (ifGenerationMatch, 412), `buckets.testIamPermissions`.

What the proxy does as the service does, and the emulator does not:

- a job id is run once: sending it again is answered by 409 `duplicate`;
- jobs are answered before they are done: `RUNNING` first, looked up later;
- a job that fails is a job that is `DONE` with an `errorResult`;
- load jobs refuse JSON columns from Parquet; permanent tables cannot be made or dropped inside a transaction.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Self

import google_crc32c

Kind = Literal["refuse", "break_before", "break_after", "fail_job", "answer", "hold"]


@dataclass
class Fault:
    """What happens to the next requests that match.

    `refuse`: the request is answered by an error. `break_before`, `break_after`: the connection ends without an answer,
    before or after the request was carried out. `fail_job`: the job is done, with an error. `answer`: is answered so.
    `hold`: it is under way until `released`.
    """

    kind: Kind
    matches: Callable[[str, str, bytes], bool]
    status: int = 503
    reason: str = "backendError"
    message: str = "Error encountered during execution. Retrying may solve the problem."
    body: Any = None
    times: int = 1
    arrived: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)


def job(pattern: str) -> Callable[[str, str, bytes], bool]:
    """Requests that send a job whose id or text has the pattern."""
    return lambda method, path, body: (
        method == "POST" and path.endswith("/jobs") and re.search(pattern, body.decode()) is not None
    )


def request(wanted: str, pattern: str) -> Callable[[str, str, bytes], bool]:
    """Requests of a method to a path that has the pattern."""
    return lambda method, path, _: method == wanted and re.search(pattern, path) is not None


@dataclass
class Service:
    """The server. `sent` are the ids of jobs in the order of their sending, repeated ones too."""

    upstream: str
    storage: Path
    faults: list[Fault] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    carried_out: list[str] = field(default_factory=list)
    failed: dict[str, dict[str, Any]] = field(default_factory=dict)
    resources: dict[str, dict[str, Any]] = field(default_factory=dict)
    uploads: dict[str, tuple[str, str]] = field(default_factory=dict)
    missing_rights: set[str] = field(default_factory=set)
    bucket_location: str = "EU"
    billed: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        handler = type("Handler", (self.handler,), {"service": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def handler(self) -> type[_Handler]:
        return _Handler

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fault(self, method: str, path: str, body: bytes) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.matches(method, path, body):
                    fault.times -= 1
                    return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    service: Service
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urllib.parse.urlsplit(self.path).path
        fault = self.service.fault(self.command, path, body)
        if fault is not None and fault.kind == "break_before":
            self._end()
        elif fault is not None and fault.kind == "refuse":
            self._error(fault.status, fault.reason, fault.message)
        elif fault is not None and fault.kind == "answer":
            self._answer(fault.status, fault.body)
        elif "/storage/v1/" in path:
            self._storage(path, body)
        else:
            if fault is not None and fault.kind == "hold":
                fault.arrived.set()
                assert fault.released.wait(120)
            status, answer = self._bigquery(path, body, fault)
            if fault is not None and fault.kind == "break_after":
                self._end()
            else:
                self._answer(status, answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - names of the standard library

    # -- BigQuery

    def _bigquery(self, path: str, body: bytes, fault: Fault | None) -> tuple[int, Any]:
        service = self.service
        if self.command == "POST" and path.endswith("/jobs"):
            return self._job(json.loads(body), body, fault)
        if self.command == "GET" and (match := re.fullmatch(r".*/(?:jobs|queries)/([^/]+)", path)):
            failed = service.failed.get(match[1])
            if failed is not None:
                return 200, failed
        status, answer = self._forward(body)
        if self.command == "GET" and "/jobs/" in path:
            return status, self._priced(answer)
        if self.command == "GET" and re.search(r"/tables/[^/]+$", path) and path in service.resources:
            answer |= service.resources[path]
        return status, answer

    def _job(self, resource: dict[str, Any], body: bytes, fault: Fault | None) -> tuple[int, Any]:
        service = self.service
        reference = resource["jobReference"]
        job_id = reference["jobId"]
        with service.lock:
            is_new = job_id not in service.sent
            service.sent.append(job_id)
        if not is_new:
            name = f"{reference['projectId']}:{reference.get('location')}.{job_id}"
            return 409, _error_body(409, "duplicate", f"Already Exists: Job {name}")
        refusal = _refusal(resource["configuration"])
        if fault is not None and fault.kind == "fail_job":
            refusal = (fault.reason, fault.message)
        if refusal is not None:
            error = {"reason": refusal[0], "message": refusal[1], "location": "query"}
            done = {**resource, "id": job_id, "status": {"state": "DONE", "errorResult": error, "errors": [error]}}
            service.failed[job_id] = {**done, "statistics": {}}
            return 200, {**resource, "id": job_id, "status": {"state": "RUNNING"}, "statistics": {}}
        service.carried_out.append(job_id)
        status, answer = self._forward(body)
        if status == 200 and not resource["configuration"].get("dryRun"):
            answer = {**answer, "status": {"state": "RUNNING"}}
        return status, self._priced(answer)

    def _priced(self, answer: dict[str, Any]) -> dict[str, Any]:
        """What a query's statistics say that the emulator leaves out: `totalBytesBilled`, `totalSlotMs`."""
        if self.service.billed is None or "query" not in answer.get("configuration", {}):
            return answer
        billed = str(self.service.billed)
        statistics = answer.get("statistics", {})
        query = {**statistics.get("query", {}), "totalBytesBilled": billed, "totalSlotMs": "7"}
        return {**answer, "statistics": {**statistics, "totalSlotMs": "7", "query": query}}

    def _forward(self, body: bytes) -> tuple[int, Any]:
        headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
        forwarded = urllib.request.Request(
            f"{self.service.upstream}{self.path}", data=body or None, method=self.command, headers=headers
        )
        try:
            with urllib.request.urlopen(forwarded, timeout=60) as answer:
                content = answer.read()
                return answer.status, json.loads(content) if content else {}
        except urllib.error.HTTPError as error:
            with error:
                content = error.read()
            return error.code, json.loads(content) if content else {}

    # -- Cloud Storage

    def _storage(self, path: str, body: bytes) -> None:
        parts = urllib.parse.urlsplit(self.path)
        query = {name: values[0] for name, values in urllib.parse.parse_qs(parts.query).items()}
        if path.startswith("/upload/"):
            self._upload(query, body)
            return
        match = re.fullmatch(r"/storage/v1/b/([^/]+)(?:/(o|iam)(?:/(.+))?)?", path)
        assert match is not None, path
        bucket, kind, rest = match.groups()
        folder = self.service.storage / bucket
        if not folder.is_dir():
            self._error(404, "notFound", "The specified bucket does not exist.")
        elif kind is None:
            self._answer(200, {"kind": "storage#bucket", "name": bucket, "location": self.service.bucket_location})
        elif kind == "iam":
            asked = urllib.parse.parse_qs(parts.query).get("permissions", [])
            self._answer(200, {"permissions": [right for right in asked if right not in self.service.missing_rights]})
        elif rest is None:
            prefix = query.get("prefix", "")
            names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
            items = [_object(folder, name) for name in names if name.startswith(prefix)]
            self._answer(200, {"kind": "storage#objects", "items": items})
        else:
            name = urllib.parse.unquote(rest)
            if not (folder / name).is_file():
                self._error(404, "notFound", f"No such object: {bucket}/{name}")
            elif self.command == "DELETE":
                (folder / name).unlink()
                self._answer(204, None)
            else:
                self._answer(200, _object(folder, name))

    def _upload(self, query: dict[str, str], body: bytes) -> None:
        bucket = self.path.split("/b/")[1].split("/")[0]
        if query.get("uploadType") == "multipart":
            message = message_from_bytes(b"Content-Type: " + self.headers["Content-Type"].encode() + b"\r\n\r\n" + body)
            metadata, content = (part.get_payload(decode=True) for part in message.walk() if not part.is_multipart())
            assert isinstance(metadata, bytes)
            assert isinstance(content, bytes)
            self._store(bucket, json.loads(metadata), content, query)
        elif self.command == "POST":
            session = f"s{len(self.service.uploads)}"
            self.service.uploads[session] = (body.decode(), query.get("ifGenerationMatch", ""))
            self.send_response(200)
            location = (
                f"{self.service.endpoint}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={session}"
            )
            self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            resource, condition = self.service.uploads[query["upload_id"]]
            self._store(bucket, json.loads(resource), body, {"ifGenerationMatch": condition})

    def _store(self, bucket: str, resource: dict[str, Any], content: bytes, query: dict[str, str]) -> None:
        path = self.service.storage / bucket / resource["name"]
        if resource.get("crc32c") not in {None, _crc32c(content)}:
            self._error(400, "invalid", "Provided CRC32C does not match the calculated one.")
        elif query.get("ifGenerationMatch") == "0" and path.exists():
            self._error(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            self._answer(200, _object(self.service.storage / bucket, resource["name"]))

    # -- answers

    def _error(self, status: int, reason: str, message: str) -> None:
        self._answer(status, _error_body(status, reason, message))

    def _answer(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        content = b"" if body is None or status == 204 else json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _end(self) -> None:
        self.close_connection = True
        self.connection.close()

    def finish(self) -> None:
        # A connection that was ended on purpose has nothing to flush.
        try:
            super().finish()
        except (OSError, ValueError):
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - a name of the standard library
        """Requests are not printed."""


def _refusal(configuration: dict[str, Any]) -> tuple[str, str] | None:
    """The service's reason and message for what the emulator would carry out."""

    def types(fields: list[dict[str, Any]]) -> set[str]:
        return {t for f in fields for t in {f["type"], *types(f.get("fields", []))}}

    load = configuration.get("load")
    if load is not None and "JSON" in types(load.get("schema", {}).get("fields", [])):
        return "invalid", "Unsupported field type: JSON"
    text = configuration.get("query", {}).get("query", "")
    for inside in re.findall(r"BEGIN TRANSACTION;(.*?)COMMIT TRANSACTION", text, re.DOTALL):
        if re.search(r"\b(?:CREATE|DROP|ALTER) TABLE\b", inside):
            return (
                "invalidQuery",
                "DDL statements are not supported in a transaction, except for those creating temporary tables.",
            )
    return None


def _error_body(status: int, reason: str, message: str) -> dict[str, Any]:
    detail = {"message": message, "domain": "global", "reason": reason}
    return {"error": {"code": status, "message": message, "errors": [detail]}}


def _object(folder: Path, name: str) -> dict[str, Any]:
    content = (folder / name).read_bytes()
    return {
        "kind": "storage#object",
        "name": name,
        "bucket": folder.name,
        "size": str(len(content)),
        "crc32c": _crc32c(content),
    }


def _crc32c(content: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(content).digest()).decode()
