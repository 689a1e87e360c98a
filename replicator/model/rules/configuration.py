"""Rules about the configuration file."""

from __future__ import annotations

from typing import Final

from replicator.model.errors import ConfigError, Severity
from replicator.model.rules import Section

SECTION: Final = Section("Configuration file")

INVALID_CONFIGURATION: Final = SECTION.rule(
    "invalid_configuration",
    raises=(ConfigError,),
    meaning="The file has problems; they are listed with their lines.",
    remedy="Fix each.",
)

FILE_NOT_READABLE: Final = SECTION.rule(
    "file_not_readable",
    found=(Severity.BLOCKING,),
    meaning="The file, or one that a `${file:…}` names, cannot be read or is not UTF-8.",
    remedy="Correct path, rights or encoding.",
)

FILE_READABLE_BY_ALL: Final = SECTION.rule(
    "file_readable_by_all",
    found=(Severity.WARNING,),
    meaning="Every user of the machine may read a file that holds a secret.",
    remedy="`chmod o-rwx` it.",
)

EMPTY_DOCUMENT: Final = SECTION.rule(
    "empty_document",
    found=(Severity.BLOCKING,),
    meaning="The file is empty.",
    remedy="`replicator init` writes one to start from.",
)

DOCUMENT_TOO_LARGE: Final = SECTION.rule(
    "document_too_large",
    found=(Severity.BLOCKING,),
    meaning=(
        "More than 256 KiB of text, aliases that unfold to too many values, or references that stand for more "
        "than 1 MiB."
    ),
    remedy="Write the values out; shorten the file; use fewer references.",
)

NAME_DIFFERS: Final = SECTION.rule(
    "name_differs",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning="The path of a `PUT` names another replicator than the file.",
    remedy="Use the same name in both.",
)

INVALID_YAML: Final = SECTION.rule(
    "invalid_yaml",
    found=(Severity.BLOCKING,),
    meaning="Not YAML, or YAML that is not read here: tags, merge keys, keys that are not text.",
    remedy="Quote what is meant as text; write merged keys out.",
)

NOT_A_MAPPING: Final = SECTION.rule(
    "not_a_mapping",
    found=(Severity.BLOCKING,),
    meaning="The file holds a list or a value instead of keys and values.",
    remedy="Begin with `name:`, `source:`, `target:`.",
)

DUPLICATE_KEY: Final = SECTION.rule(
    "duplicate_key",
    found=(Severity.BLOCKING,),
    meaning="A key appears twice in one block.",
    remedy="Remove one.",
)

UNKNOWN_KEY: Final = SECTION.rule(
    "unknown_key",
    found=(Severity.BLOCKING,),
    meaning="No such setting in this block; the nearest one is named, or the block it belongs to.",
    remedy="Correct the spelling or the indentation: `configuration.md`.",
)

MISSING_KEY: Final = SECTION.rule(
    "missing_key",
    found=(Severity.BLOCKING,),
    meaning="A required setting is missing.",
    remedy="Add it.",
)

WRONG_TYPE: Final = SECTION.rule(
    "wrong_type",
    found=(Severity.BLOCKING,),
    meaning="A value of another kind: text instead of a number, a list instead of a block.",
    remedy="Write what the message asks for; quote texts that YAML takes for values.",
)

OUT_OF_BOUNDS: Final = SECTION.rule(
    "out_of_bounds",
    found=(Severity.BLOCKING,),
    meaning="A value below or above its bounds.",
    remedy="Choose one within them.",
)

INVALID_VALUE: Final = SECTION.rule(
    "invalid_value",
    found=(Severity.BLOCKING,),
    meaning="A value that is not allowed, or has the wrong form.",
    remedy="Write one of those that the message names.",
)

LITERAL_SECRET: Final = SECTION.rule(
    "literal_secret",
    found=(Severity.BLOCKING,),
    meaning=(
        "The file contains a secret, or a text that looks like one: a setting of Spark with such a name, a "
        "password in an address, `token=…` in an argument."
    ),
    remedy=(
        "Write `${env:NAME}` or `${file:/path}`; a command reads its secrets from a file. Change the secret if "
        "others have seen the file."
    ),
)

INVALID_REFERENCE: Final = SECTION.rule(
    "invalid_reference",
    found=(Severity.BLOCKING,),
    meaning="`${…}` is neither `${env:NAME}` nor `${file:/path}`.",
    remedy="Write one of them; `$${` means a literal `${`.",
)

VARIABLE_NOT_SET: Final = SECTION.rule(
    "variable_not_set",
    found=(Severity.BLOCKING,),
    meaning="The environment variable of a reference is not set where the command or worker runs.",
    remedy="Export it there, for `serve` too.",
)

UNKNOWN_PLUGIN: Final = SECTION.rule(
    "unknown_plugin",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning="No plugin of that name is installed.",
    remedy="Correct the `type:`, or install the plugin.",
)

PLUGIN_BROKEN: Final = SECTION.rule(
    "plugin_broken",
    found=(Severity.BLOCKING,),
    meaning="The plugin is installed and cannot be used.",
    remedy="`replicator plugins` says why; repair its installation.",
)
