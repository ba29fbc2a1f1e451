"""Text for terminals: errors in one line, and names that cannot steer the terminal."""

from __future__ import annotations

import logging
import tempfile
import traceback

from finetune.types import CustomFunctionError, UserError

_CONTROLS = {
    code: f"\\u{code:04x}"
    for code in (
        *set(range(0x20)) - {0x09, 0x0A},
        *range(0x7F, 0xA0),  # terminal escapes begin with one
        0x061C,
        0x200E,
        0x200F,
        *range(0x2028, 0x202F),
        *range(0x2066, 0x206A),  # directions
    )
}


def printable(text: str) -> str:
    """Escape control characters and changes of direction in a text as ``\\u001b``.

    Names and texts from files cannot steer a terminal, and JSON keeps its value.
    """
    return text.translate(_CONTROLS)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory is exhausted."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"  # torch's on a GPU; on a CPU it has no class
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )


def error_line(error: Exception) -> tuple[str, int]:
    """Format an error for the user, with its exit code; write the traceback of a bug to a file."""
    logging.getLogger(__name__).info("the error:", exc_info=error)  # with --verbose
    if isinstance(error, UserError):
        return f"error: {error}".replace("\n", "\\n"), 2
    if isinstance(error, CustomFunctionError):
        return f"{''.join(traceback.format_exception(error.__cause__))}error: {error}.", 2
    if isinstance(error, OSError) and error.strerror:
        return f"error: {f'{error.filename}: ' if error.filename else ''}{error.strerror}.", 2
    if is_out_of_memory(error):
        return "error: out of memory: lower --max-tokens, then --max-length.", 2
    with tempfile.NamedTemporaryFile(
        "w", prefix="finetune-", suffix=".log", delete=False, encoding="utf-8"
    ) as file:
        traceback.print_exception(error, file=file)
    problem = " ".join(f"{type(error).__name__}: {error}".split())
    return f"internal error: {problem}; traceback in {file.name}; please report", 1
