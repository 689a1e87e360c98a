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
    text="{origin} cannot be used: {count} {noun}.",
)

FILE_NOT_READABLE: Final = SECTION.rule(
    "file_not_readable",
    found=(Severity.BLOCKING,),
    meaning="The file, or one that a `${file:…}` names, cannot be read or is not UTF-8.",
    remedy="Correct path, rights or encoding.",
    text="{file} cannot be read: {reason}.",
    action="Check the path and its rights.",
)

NOT_UTF8: Final = FILE_NOT_READABLE.worded("{file} is not UTF-8 text.", action="Save the file as UTF-8.")

SECRET_FILE_NOT_UTF8: Final = FILE_NOT_READABLE.worded(
    "The file {file} is not UTF-8 text.", action="Store the value as text."
)

SECRET_FILE_NOT_READABLE: Final = FILE_NOT_READABLE.worded(
    "The file {file} cannot be read: {reason}.",
    action="Correct the path, or let the user that runs the replicator read it.",
)


FILE_READABLE_BY_ALL: Final = SECTION.rule(
    "file_readable_by_all",
    found=(Severity.WARNING,),
    meaning="Every user of the machine may read a file that holds a secret.",
    remedy="`chmod o-rwx` it.",
    text="Every user of this machine may read the file {file}.",
    action="chmod o-rwx {file}",
)

EMPTY_DOCUMENT: Final = SECTION.rule(
    "empty_document",
    found=(Severity.BLOCKING,),
    meaning="The file is empty.",
    remedy="`replicator init` writes one to start from.",
    text="The file is empty.",
    action="`replicator init` writes a file to start from.",
)

DOCUMENT_TOO_LARGE: Final = SECTION.rule(
    "document_too_large",
    found=(Severity.BLOCKING,),
    meaning=(
        "More than 256 KiB of text, aliases that unfold to too many values, or references that stand for more "
        "than 1 MiB."
    ),
    remedy="Write the values out; shorten the file; use fewer references.",
    text="The file is larger than {most_kib}KiB, the most that a configuration may be.",
)

ALIASES_TOO_MANY: Final = DOCUMENT_TOO_LARGE.worded(
    "The file's aliases (*name) unfold to more than {most} values, or contain themselves.",
    action="Write the values out.",
)

REFERENCES_TOO_LARGE: Final = DOCUMENT_TOO_LARGE.worded(
    "The references stand for more than {most_kib}Ki characters.", action="Use fewer references, or smaller files."
)

NAME_DIFFERS: Final = SECTION.rule(
    "name_differs",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning="The path of a `PUT` names another replicator than the file.",
    remedy="Use the same name in both.",
    text="The file is that of {name}, and the path names another replicator.",
    action="Use the same name in the path and in the file.",
    location="name",
)


INVALID_YAML: Final = SECTION.rule(
    "invalid_yaml",
    found=(Severity.BLOCKING,),
    meaning="Not YAML, or YAML that is not read here: tags, merge keys, keys that are not text.",
    remedy="Quote what is meant as text; write merged keys out.",
    text="This is not valid YAML: {words}.",
)

CONTROL_CHARACTER: Final = INVALID_YAML.worded(
    "This is not valid YAML: there is a control character in it.", action="Remove the character."
)

TAGS: Final = INVALID_YAML.worded("YAML tags (!…) are not supported.", action="Write a plain value.")

NO_DATE_OR_NUMBER: Final = INVALID_YAML.worded(
    "This cannot be read as a date or number.", action="If it is meant as text, put it in quotes."
)

MERGE_KEYS: Final = INVALID_YAML.worded("Merge keys (<<) are not supported.", action="Write the keys out.")

KEY_NOT_TEXT: Final = INVALID_YAML.worded(
    "A key must be text.", action="Put it in quotes: YAML reads on, no and 1 as values."
)

HALF_A_CHARACTER: Final = INVALID_YAML.worded(
    "An escape in this text is half of a surrogate pair, which is no character.", action="Write the character itself."
)

NOT_A_MAPPING: Final = SECTION.rule(
    "not_a_mapping",
    found=(Severity.BLOCKING,),
    meaning="The file holds a list or a value instead of keys and values.",
    remedy="Begin with `name:`, `source:`, `target:`.",
    text="The file must hold keys and values (name:, source:, target:); it holds {found}.",
)

DUPLICATE_KEY: Final = SECTION.rule(
    "duplicate_key",
    found=(Severity.BLOCKING,),
    meaning="A key appears twice in one block.",
    remedy="Remove one.",
    text="`{key}` is written twice; first on line {line_before}.",
    action="Remove one of them.",
)

UNKNOWN_KEY: Final = SECTION.rule(
    "unknown_key",
    found=(Severity.BLOCKING,),
    meaning="No such setting in this block; the nearest one is named, or the block it belongs to.",
    remedy="Correct the spelling or the indentation: `configuration.md`.",
    text="{name} is not a known key.",
)

MISSING_KEY: Final = SECTION.rule(
    "missing_key",
    found=(Severity.BLOCKING,),
    meaning="A required setting is missing.",
    remedy="Add it.",
    text="{name} is missing.",
    action="Add `{key}:`. {description}",
)

PLUGIN_BLOCK_MISSING: Final = MISSING_KEY.worded(
    "`{key}` is missing.", action="Add `{key}:` with a `type:` and the plugin's settings. {installed}"
)

PLUGIN_TYPE_MISSING: Final = MISSING_KEY.worded("`{key}.type` is missing.", action="Name a plugin. {installed}")

WRONG_TYPE: Final = SECTION.rule(
    "wrong_type",
    found=(Severity.BLOCKING,),
    meaning="A value of another kind: text instead of a number, a list instead of a block.",
    remedy="Write what the message asks for; quote texts that YAML takes for values.",
    text="{name} must be {form}; found {found}.",
)

PLUGIN_BLOCK_NOT_A_BLOCK: Final = WRONG_TYPE.worded(
    "`{key}` must be a block of keys and values.",
    action="Add `{key}:` with a `type:` and the plugin's settings. {installed}",
)

PLUGIN_TYPE_NOT_TEXT: Final = WRONG_TYPE.worded("`{key}.type` must be text.", action="Name a plugin. {installed}")

OUT_OF_BOUNDS: Final = SECTION.rule(
    "out_of_bounds",
    found=(Severity.BLOCKING,),
    meaning="A value below or above its bounds.",
    remedy="Choose one within them.",
    text="{name} must be {bounds}{found}.",
    action="Write a value that is {bounds}.",
)

INVALID_VALUE: Final = SECTION.rule(
    "invalid_value",
    found=(Severity.BLOCKING,),
    meaning="A value that is not allowed, or has the wrong form.",
    remedy="Write one of those that the message names.",
    text="{name}{joint}{words}.",
)

NOT_FILLED_IN: Final = INVALID_VALUE.worded("`{setting}` is still {placeholder}.", action="Set it. {description}")

NO_PATTERN: Final = INVALID_VALUE.worded("{shown} is not a table pattern.", action="{help}")

NO_CHOICE: Final = INVALID_VALUE.worded("{name} must be {choices}{found}.")

WRONG_FORM: Final = INVALID_VALUE.worded("{name} does not have the required form{found}.")

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
    text="{name} {what} and must not be written in the file.",
    action=(
        "Write ${{env:NAME}} or ${{file:/path}} and keep the value there. Change the secret if others have seen the file."
    ),
)

LITERAL_SECRET_IN_COMMAND: Final = LITERAL_SECRET.worded(
    "{name} {what} and must not be written in the file.",
    action=(
        "Let the program read it from a file: every user of the host can read arguments. Change the secret if others "
        "have seen the file."
    ),
)

INVALID_REFERENCE: Final = SECTION.rule(
    "invalid_reference",
    found=(Severity.BLOCKING,),
    meaning="`${…}` is neither `${env:NAME}` nor `${file:/path}`.",
    remedy="Write one of them; `$${` means a literal `${`.",
    text="`${{…}}` must be a reference to an environment variable or a file.",
    action="Write ${{env:NAME}} or ${{file:/path}}; $${{ means a literal ${{.",
)

NO_VARIABLE_NAME: Final = INVALID_REFERENCE.worded(
    "The name after env: is not a valid name of an environment variable.", action="Write ${{env:NAME}}."
)

FILE_NOT_ABSOLUTE: Final = INVALID_REFERENCE.worded(
    "The path of the file {file} is not absolute.", action="Write ${{file:/full/path}}."
)

VARIABLE_NOT_SET: Final = SECTION.rule(
    "variable_not_set",
    found=(Severity.BLOCKING,),
    meaning="The environment variable of a reference is not set where the command or worker runs.",
    remedy="Export it there, for `serve` too.",
    text="The environment variable {variable} is not set.",
    action="Set it where the replicator runs: export {variable}=…",
)

UNKNOWN_PLUGIN: Final = SECTION.rule(
    "unknown_plugin",
    raises=(ConfigError,),
    found=(Severity.BLOCKING,),
    meaning="No plugin of that name is installed.",
    remedy="Correct the `type:`, or install the plugin.",
)

PLUGIN_NOT_INSTALLED: Final = UNKNOWN_PLUGIN.worded(
    "There is no plugin called {plugin!r}.", action="Installed and working: {models}."
)

UNKNOWN_TYPE: Final = UNKNOWN_PLUGIN.worded(
    "There is no {sort} plugin called {shown!r}. {listed}", action="{hint}: pip install replicator-{sort}-NAME"
)

PLUGIN_BROKEN: Final = SECTION.rule(
    "plugin_broken",
    found=(Severity.BLOCKING,),
    meaning="The plugin is installed and cannot be used.",
    remedy="`replicator plugins` says why; repair its installation.",
    text="The {sort} plugin {name} is installed, but {broken}.",
    action="Repair its installation; `replicator plugins` shows the state of every plugin.",
)
