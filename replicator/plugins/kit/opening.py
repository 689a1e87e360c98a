"""Opens files of the journal, wherever they are."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import fs


def open_seekable(file_system: fs.FileSystem, path: str) -> pa.NativeFile:
    """Open a file that can be read from any position.

    From Google Cloud Storage it is read whole. There pyarrow asks for the first bytes of a seekable file when it checks whether the
    file is closed, in the interpreter's lock: a slow answer stops every thread, and a refused one becomes "closed file".

    Raises:
        OSError: The file does not exist, or cannot be read.
    """
    if file_system.type_name != "gcs":
        return file_system.open_input_file(path)
    with file_system.open_input_stream(path, compression=None) as stream:
        return pa.BufferReader(stream.read())
