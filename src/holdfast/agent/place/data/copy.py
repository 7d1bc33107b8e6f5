"""The entry ``copy RUN PATH``: a file or directory of a run as a stream (`view.run_files`), for a desk that copies it.

The last line is ``end``, or an error as every entry answers it.
"""

from __future__ import annotations

from holdfast.agent.place.answer import print_error
from holdfast.agent.view.find import find_run_path, require_readable
from holdfast.agent.view.run_files import send_files
from holdfast.host.files.files import write_all
from holdfast.model.errors import HoldfastError, StorageError, UsageError


def main(words: list[str]) -> int:
    """Write the stream; the exit code."""
    try:
        if len(words) != 2:
            raise UsageError("agent copy takes: RUN PATH")
        found, path = find_run_path(*words)
        require_readable(found)
        for data in send_files(found.run_dir, path):
            write_all(1, data)
    except HoldfastError as error:
        return print_error(error)
    except BrokenPipeError:
        return 0  # whoever asked has gone
    except OSError as error:
        return print_error(StorageError(f"{error.filename or 'copy'}: {error.strerror}"))
    return 0
