"""Base of every settings model."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class ConfigModel(BaseModel):
    """Base of every settings model, the host's and the plugins': immutable, unknown keys refused, values kept out of errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @field_validator("*", mode="before")
    @classmethod
    def _null_is_a_word(cls, value: Any, info: ValidationInfo) -> Any:
        """Read YAML's null as the word where that is one of the choices, so that it needs no quotes."""
        is_word = info.field_name is not None and "null" in get_args(cls.model_fields[info.field_name].annotation)
        return "null" if value is None and is_word else value
