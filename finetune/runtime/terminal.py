"""Text that cannot steer a terminal."""

from __future__ import annotations

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
