"""What the command line asks of every command, besides its options."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Command(ABC):
    """A command is a frozen dataclass: its fields are the options, and ``run`` carries it out."""

    @property
    def trains(self) -> bool:
        """Whether the command trains, and so goes on if nobody reads its output any more."""
        return False

    @property
    def shares_work(self) -> bool:
        """Whether all processes of a launch run the command, and not the main one alone."""
        return False

    @property
    def single_process(self) -> str | None:
        """Name of the command or option for which a launch is refused."""
        return None

    @abstractmethod
    def run(self) -> None:
        """Carry out the command."""
