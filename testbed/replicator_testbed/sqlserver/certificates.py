"""Certificates for the model's TLS: an authority of a test, and a server's certificate that it signed."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from replicator_testbed.scratch_servers import TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class Authority:
    """An authority in a folder; `certificate` is what a client has to trust."""

    folder: Path
    certificate: Path
    key: Path

    @classmethod
    def make(cls, folder: Path, name: str = "authority") -> Authority:
        """Make one."""
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        _openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", str(key), "-out", str(certificate)),
        )
        return cls(folder, certificate, key)

    def server(self, *names: str) -> ssl.SSLContext:
        """What a server with a certificate for these names, such as `DNS:localhost`, presents."""
        stem = self.folder / "-".join(name.replace(":", "_") for name in names)
        key, request, certificate = stem.with_suffix(".key"), stem.with_suffix(".csr"), stem.with_suffix(".crt")
        extensions = stem.with_suffix(".ext")
        extensions.write_text(f"subjectAltName={','.join(names)}\n")
        subject = names[0].partition(":")[2]
        _openssl(
            *("req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={subject}"),
            *("-keyout", str(key), "-out", str(request)),
        )
        _openssl(
            *(
                "x509",
                "-req",
                "-in",
                str(request),
                "-CA",
                str(self.certificate),
                "-CAkey",
                str(self.key),
                "-CAcreateserial",
            ),
            *("-days", "2", "-extfile", str(extensions), "-out", str(certificate)),
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        # In TDS 7.4 the handshake is inside of PRELOGIN packets, and ends with them: that of TLS 1.3 would not.
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        return context


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=TIMEOUT_SECONDS)
