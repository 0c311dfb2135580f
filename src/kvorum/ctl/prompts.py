"""Questions that a person answers at a terminal."""

from getpass import getpass

from kvorum.cli.errors import BAD_ARGUMENTS, CommandError


def ask_password(prompt: str) -> str:
    """Ask for a password that the terminal does not show."""
    try:
        return getpass(prompt)
    except (EOFError, OSError) as error:
        raise CommandError(f"failed to ask password: {error}", BAD_ARGUMENTS) from error
