"""The base class of commands."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Command(ABC):
    """A command is a frozen dataclass: its fields are the options, and ``run`` carries it out."""

    @property
    def trains(self) -> bool:
        """True if the command trains; training continues after its output is closed."""
        return False

    @property
    def shares_work(self) -> bool:
        """True if all processes of a launch run the command, False for the main process only."""
        return False

    @property
    def single_process(self) -> str | None:
        """Name of the command or option for which a launch is refused."""
        return None

    @abstractmethod
    def run(self) -> None:
        """Carry out the command."""


class TrainingCommand(Command):
    """A command that trains, or with ``dry_run`` shows the plan."""

    dry_run: bool

    @property
    def trains(self) -> bool:
        """True: models are trained."""
        return True

    @property
    def shares_work(self) -> bool:
        """True, except that one process shows the plan."""
        return not self.dry_run
