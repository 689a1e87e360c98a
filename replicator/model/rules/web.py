"""Rules about the REST API."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import ConfigError, RequestError
from replicator.model.rules import Section

SECTION: Final = Section(
    "REST API",
    (
        "`rest.md` describes the API. `ConfigError`s are errors of `replicator serve --listen` and `replicator "
        "token`, `RequestError`s are answers to a request. An error of another section can be an answer, too; "
        "`rest.md` says with which status."
    ),
)

INVALID_LISTEN: Final = SECTION.rule(
    "invalid_listen",
    raises=(ConfigError,),
    meaning="`--listen` is not an address and a port.",
    remedy="Write, for example, `127.0.0.1:8410` or `[::1]:8410`.",
)

TLS_REQUIRED: Final = SECTION.rule(
    "tls_required",
    raises=(ConfigError,),
    meaning="`--listen` names an address that other hosts can reach, without TLS.",
    remedy="Add `--tls-cert` and `--tls-key`, or `--behind-proxy`; or listen on `127.0.0.1`.",
)

TLS_UNUSABLE: Final = SECTION.rule(
    "tls_unusable",
    raises=(ConfigError,),
    meaning="The certificate and its key cannot be used, or one of them is missing.",
    remedy="Give both as PEM files, the key without a password.",
)

CANNOT_LISTEN: Final = SECTION.rule(
    "cannot_listen",
    raises=(ConfigError,),
    meaning="The port is taken, or the address is not one of this host.",
    remedy="Choose another port, or end the process that uses it (`ss -ltnp`).",
)

WEB_NOT_STARTED: Final = SECTION.rule(
    "web_not_started",
    raises=(ConfigError,),
    meaning="The process of the REST API ended before it answered; the lines above say why.",
    remedy="Correct what they say.",
)

INVALID_TOKEN_NAME: Final = SECTION.rule(
    "invalid_token_name",
    raises=(ConfigError,),
    meaning="`token create`: the name has another form.",
    remedy="Use 1 to 63 characters: a-z, 0-9, `_` and `-`.",
)

TOKEN_EXISTS: Final = SECTION.rule(
    "token_exists",
    raises=(ConfigError,),
    meaning="`token create`: there is a token of that name.",
    remedy="Choose another name, or revoke that one.",
)

UNKNOWN_TOKEN: Final = SECTION.rule(
    "unknown_token",
    raises=(ConfigError,),
    meaning="`token revoke`: there is no token of that name.",
    remedy="`replicator token list`",
)

UNAUTHORIZED: Final = SECTION.rule(
    "unauthorized",
    raises=(RequestError,),
    meaning="Status 401. A token is needed, or the token is not valid: it has expired, was revoked, or is none.",
    remedy=(
        "Send `Authorization: Bearer TOKEN`; to create one: `replicator token create NAME`, with `--scope "
        "operate` to change something, or `--scope configure` for configurations."
    ),
)

SCOPE_TOO_SMALL: Final = SECTION.rule(
    "scope_too_small",
    raises=(RequestError,),
    meaning="Status 403. The token does not allow this: it only reads, or may not send configurations.",
    remedy="Use a token with the scope that the answer names.",
)

HOST_NOT_ALLOWED: Final = SECTION.rule(
    "host_not_allowed",
    raises=(RequestError,),
    meaning=(
        "Status 421. The header `Host` is neither an address, nor `localhost`, nor a name that the server was given."
    ),
    remedy="Start the server with `--allowed-host NAME`.",
)

FORM_EXPIRED: Final = SECTION.rule(
    "form_expired",
    raises=(RequestError,),
    meaning="Status 403. A form of the dashboard does not belong to a page that this browser was shown.",
    remedy="Go back, load the page again, and repeat what you did.",
)

CROSS_SITE: Final = SECTION.rule(
    "cross_site",
    raises=(RequestError,),
    meaning="Status 403. A page of another site has sent the request.",
    remedy="Call the API from a program, or from a page of the same origin.",
)

UNSUPPORTED_MEDIA_TYPE: Final = SECTION.rule(
    "unsupported_media_type",
    raises=(RequestError,),
    meaning=(
        "Status 415. The body is not JSON (or YAML, for a configuration), or for a page not a form, by its "
        "header `Content-Type`."
    ),
    remedy="Send `Content-Type: application/json`, or `application/yaml`.",
)

MALFORMED_REQUEST: Final = SECTION.rule(
    "malformed_request",
    raises=(RequestError,),
    meaning=(
        "Status 400. The path has a control character or does not begin with a slash, or the length of the body "
        "is given in two ways."
    ),
    remedy="Send another path, and one length: `Content-Length` or `Transfer-Encoding: chunked`.",
)

REQUEST_TOO_LARGE: Final = SECTION.rule(
    "request_too_large",
    raises=(RequestError,),
    meaning="Status 413 or 431. The body, or the path with its query and headers, is too large.",
    remedy="Send less.",
)

REQUEST_TOO_SLOW: Final = SECTION.rule(
    "request_too_slow",
    raises=(RequestError,),
    meaning="Status 408. The body did not come in time.",
    remedy="Send it again.",
)

TOO_MANY_REQUESTS: Final = SECTION.rule(
    "too_many_requests",
    raises=(RequestError,),
    meaning=(
        "Status 429. The caller asks more often than `--requests-per-second` allows, or, behind a proxy, a token "
        "has more requests under way than `--connections-per-client`."
    ),
    remedy="Wait as long as the header `Retry-After` says, or allow more.",
)

SERVER_BUSY: Final = SECTION.rule(
    "server_busy",
    raises=(RequestError,),
    meaning=(
        "Status 503. The server had no answer in time, as a rule because the state store does not answer; or "
        "other configurations are being read; or the source or target of a configuration does not answer."
    ),
    remedy="Try again; see the state store, or the configuration's source and target.",
)

UNKNOWN_PATH: Final = SECTION.rule(
    "unknown_path",
    raises=(RequestError,),
    meaning="Status 404. There is nothing at this path.",
    remedy="The paths are in `/api/v1/openapi.json`.",
)

METHOD_NOT_ALLOWED: Final = SECTION.rule(
    "method_not_allowed",
    raises=(RequestError,),
    meaning="Status 405. The path does not take this method.",
    remedy="The header `Allow` has those that it takes.",
)

INVALID_REQUEST: Final = SECTION.rule(
    "invalid_request",
    raises=(RequestError,),
    meaning=(
        "Status 422. A part of the path, of the query or of the body is not what the OpenAPI document says. A "
        "parameter that the path does not have is named, with the nearest that it has."
    ),
    remedy="Correct what the message names.",
)
