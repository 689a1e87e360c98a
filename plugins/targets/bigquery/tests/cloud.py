"""All of Google's hosts in one server: a proxy that ends TLS for them, so that a program needs no setting to talk to it.

`HTTPS_PROXY` leads requests here, `REQUESTS_CA_BUNDLE` makes them believe the certificate. Behind it stand the service's
double (`service.py`), which asks for a token with every request, and those that give tokens:

- `oauth2.googleapis.com/token` for a service account's signed assertion (RFC 7523; errors as RFC 6749, 5.2);
- `iamcredentials.googleapis.com`, `generateAccessToken`, for who may act as a service account;
- the metadata server of a machine in Google's cloud, over plain HTTP (`GCE_METADATA_HOST`).
"""

from __future__ import annotations

import json
import ssl
import subprocess
import tempfile
import urllib.parse
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from google.auth import jwt

from .service import Service, _Handler

MACHINE = "machine@demo-project.iam.gserviceaccount.com"
_TOKEN = "token of "


@dataclass
class Cloud(Service):
    """The server. `served` are the accounts that BigQuery and Cloud Storage were asked by; `revoked` get no token, `expired` no answer."""

    folder: Path = Path()
    keys: dict[str, str] = field(default_factory=dict)
    may_act_as: set[tuple[str, str]] = field(default_factory=set)
    revoked: set[str] = field(default_factory=set)
    expired: set[str] = field(default_factory=set)
    served: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.certificate, key = self.folder / "cloud.pem", self.folder / "cloud.key"
        made_key, certificate = _made("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
        key.write_text(made_key)
        self.certificate.write_text(certificate)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(self.certificate, key)

    @property
    def handler(self) -> type[_Handler]:
        return _CloudHandler

    def environ(self) -> dict[str, str]:
        """What leads a program here, and nowhere else."""
        return {
            "HTTPS_PROXY": self.endpoint,
            "NO_PROXY": "127.0.0.1,localhost",
            "REQUESTS_CA_BUNDLE": str(self.certificate),
            "CLOUDSDK_CONFIG": str(self.folder / "gcloud"),
            "NO_GCE_CHECK": "true",
            "GOOGLE_CLOUD_PROJECT": "demo-project",
        }

    def machine(self) -> dict[str, str]:
        """What makes a program believe that it runs in Google's cloud."""
        host = self.endpoint.removeprefix("http://")
        return {"GCE_METADATA_HOST": host, "GCE_METADATA_IP": host, "NO_GCE_CHECK": "false"}

    def key_file(self, name: str) -> Path:
        """The key of a service account that is there from now on."""
        email = f"{name}@demo-project.iam.gserviceaccount.com"
        key, certificate = _made("rsa:2048")
        self.keys[email] = certificate
        content = {
            "type": "service_account",
            "project_id": "demo-project",
            "private_key_id": name,
            "private_key": key,
            "client_email": email,
            "token_uri": "https://oauth2.googleapis.com/token",
        }
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(content))
        return file


class _CloudHandler(_Handler):
    service: Cloud
    host = ""

    def do_CONNECT(self) -> None:  # noqa: N802 - a name of the standard library
        self.host = self.path.partition(":")[0]
        self.service.hosts.add(self.host)
        self.send_response(200, "Connection established")
        self.end_headers()
        self.connection = self.request = self.service.tls.wrap_socket(self.request, server_side=True)
        self.rfile = self.connection.makefile("rb", -1)
        self.wfile = self.connection.makefile("wb", 0)
        self.close_connection = False

    def finish(self) -> None:
        super().finish()
        # The server closes the socket below TLS alone.
        self.rfile.close()
        self.connection.close()

    def _serve(self) -> None:
        path = urllib.parse.urlsplit(self.path).path
        if self.host == "":
            self._metadata(path)
        elif self.host == "oauth2.googleapis.com":
            self._token(self._body())
        elif self.host == "iamcredentials.googleapis.com":
            self._act_as(path)
        elif (account := self._account()) is None:
            self._body()
            self._error(401, "authError", "Request had invalid authentication credentials.")
        else:
            self.service.served.add(account)
            super()._serve()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - names of the standard library

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _account(self) -> str | None:
        """Whose token the request has; None if it has none that is good."""
        account = self.headers.get("Authorization", "").removeprefix("Bearer ").removeprefix(_TOKEN)
        return account if account and account not in self.service.expired else None

    def _token(self, body: bytes) -> None:
        form = urllib.parse.parse_qs(body.decode())
        (assertion,) = form["assertion"]
        claims = jwt.decode(assertion, verify=False)
        account = claims["iss"]
        if account in self.service.revoked or account not in self.service.keys:
            self._answer(400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."})
            return
        jwt.decode(assertion, certs=self.service.keys[account], audience="https://oauth2.googleapis.com/token")
        # The second is all that is needed to act as somebody else.
        assert claims["scope"] in {f"https://www.googleapis.com/auth/{name}" for name in ("cloud-platform", "iam")}
        self._answer(200, {"access_token": f"{_TOKEN}{account}", "expires_in": 3600, "token_type": "Bearer"})

    def _act_as(self, path: str) -> None:
        self._body()
        account = self._account()
        target = urllib.parse.unquote(path).rpartition("/")[2].partition(":")[0]
        if not path.endswith(":generateAccessToken"):
            self._answer(404, {"error": {"code": 404, "message": "Not found.", "status": "NOT_FOUND"}})
        elif account is None or (account, target) not in self.service.may_act_as:
            message = "Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may not exist)."
            self._answer(403, {"error": {"code": 403, "message": message, "status": "PERMISSION_DENIED"}})
        else:
            expires = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
            self._answer(200, {"accessToken": f"{_TOKEN}{target}", "expireTime": expires})

    def _metadata(self, path: str) -> None:
        self._body()
        answers: dict[str, Any] = {
            "/": {},
            "/computeMetadata/v1/instance/service-accounts/default/": {
                "aliases": ["default"], "email": MACHINE, "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
            },
            "/computeMetadata/v1/instance/service-accounts/default/token": {
                "access_token": f"{_TOKEN}{MACHINE}", "expires_in": 3600, "token_type": "Bearer",
            },
        }  # fmt: skip
        if path in answers:
            self._answer(200, answers[path], {"Metadata-Flavor": "Google"})
        else:
            self._answer(404, {}, {"Metadata-Flavor": "Google"})


@cache
def _made(*kind: str) -> tuple[str, str]:
    """A private key and a certificate of Google's hosts; the same for every test."""
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = Path(folder) / "key", Path(folder) / "certificate"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", *kind, "-nodes", "-days", "2", "-subj", "/CN=googleapis.com",
             "-addext", "subjectAltName=DNS:*.googleapis.com", "-keyout", str(key), "-out", str(certificate)],
            check=True, capture_output=True,
        )  # fmt: skip
        return key.read_text(), certificate.read_text()
