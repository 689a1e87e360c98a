"""Statements as MySQL and MariaDB read them: tokens, and the forms that are known completely."""

from __future__ import annotations

__all__: list[str] = []
