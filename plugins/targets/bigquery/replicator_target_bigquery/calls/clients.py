"""Clients of BigQuery and Cloud Storage from the configuration, and the time limits of their calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import google.auth
from google.api_core.client_options import ClientOptions
from google.api_core.retry import Retry
from google.auth import identity_pool, impersonated_credentials
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError
from google.auth.transport.requests import AuthorizedSession, Request
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient
from google.oauth2 import service_account
from requests import Session
from requests.adapters import HTTPAdapter

from replicator_target_bigquery.config import BigQueryConfig

TIMEOUT_S: Final = 60.0
READ_RETRY: Final = Retry(initial=0.2, maximum=5.0, timeout=30.0)
"""The retries of reads alone: repeating one hides no outcome. A request that changes something is sent once."""

_TOKEN_RETRIES: Final = 3
_SCOPES: Final = ("https://www.googleapis.com/auth/cloud-platform",)


def credentials_of(config: BigQueryConfig) -> Any:
    """Return the credentials that the configuration names; no I/O beyond reading the file, or asking the machine's metadata server.

    Raises:
        google.auth.exceptions.GoogleAuthError: There are none.
    """
    if config.is_emulator:
        return AnonymousCredentials()
    wanted = config.credentials
    if wanted.file is not None:
        found = _from_file(wanted.file)
    else:
        found, _ = google.auth.default(scopes=_SCOPES)
    if wanted.impersonate is not None:
        return impersonated_credentials.Credentials(
            source_credentials=found, target_principal=wanted.impersonate, target_scopes=list(_SCOPES)
        )
    return found


def _from_file(path: Path) -> Any:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        kind = content.get("type")
        if kind == "service_account":
            return service_account.Credentials.from_service_account_info(content, scopes=_SCOPES)
        if kind == "external_account":
            return identity_pool.Credentials.from_info(content, scopes=_SCOPES)
    except (OSError, ValueError, AttributeError) as error:
        raise DefaultCredentialsError(f"{path} cannot be used: {type(error).__name__}") from error
    raise DefaultCredentialsError(f"{path} is of type {kind}; service_account and external_account can be used")


def bigquery_client(config: BigQueryConfig) -> bigquery.Client:
    """A client that bills `billing_project` and sends jobs to the location."""
    options = ClientOptions(api_endpoint=config.endpoint) if config.endpoint is not None else None
    credentials = credentials_of(config)
    return bigquery.Client(
        project=config.billing_project or config.project,
        credentials=credentials,
        location=config.location,
        client_options=options,
        _http=_Straight(credentials),
    )


def storage_client(config: BigQueryConfig) -> Any:
    """A client of Cloud Storage."""
    endpoint, credentials = config.staging.endpoint, credentials_of(config)
    return StorageClient(
        project=config.billing_project or config.project,
        credentials=credentials,
        _http=_Straight(credentials),
        client_options=ClientOptions(api_endpoint=endpoint) if endpoint is not None else None,
    )


class _Straight(AuthorizedSession):
    """A session that follows no redirect: statements, files, and what tokens are asked for with, go where the settings say."""

    def __init__(self, credentials: Any) -> None:
        self._tokens = Session()
        self._tokens.mount("https://", HTTPAdapter(max_retries=_TOKEN_RETRIES))
        super().__init__(credentials, auth_request=Request(self._tokens))  # type: ignore[no-untyped-call]
        self.max_redirects = self._tokens.max_redirects = 0

    def close(self) -> None:
        """Close the connections to the service and to that of the tokens."""
        super().close()  # type: ignore[no-untyped-call]
        self._tokens.close()
