"""Protection of forms: a page has a text in a field and the browser in a cookie. Another site's page can read neither."""

from __future__ import annotations

import hmac
import secrets
from typing import Final

from replicator.model.errors import RequestError

COOKIE: Final = "replicator_form"
FIELD: Final = "form"
_BYTES: Final = 32


def new_text() -> str:
    """Return a text that nobody can guess."""
    return secrets.token_urlsafe(_BYTES)


def check(field: str, cookie: str | None) -> None:
    """Refuse a form that was not made by a page of this server.

    Raises:
        RequestError: `form_expired`.
    """
    if not cookie or not hmac.compare_digest(field.encode(), cookie.encode()):
        raise RequestError(
            "The form does not belong to a page that this browser was shown.",
            status=403,
            code="form_expired",
            action="Go back, load the page again, and repeat what you did.",
        )
