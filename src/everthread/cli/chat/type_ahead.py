"""Keys that are typed while a chat starts or a turn runs: they wait for the next message."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import select
import sys
import termios
from collections.abc import Iterator, Sequence

from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding.key_processor import KeyPress
from prompt_toolkit.keys import Keys

START_BRACKETED_PASTE = "\x1b[?2004h"
END_BRACKETED_PASTE = "\x1b[?2004l"
MAX_READ_BYTES = 65_536
QUIET_SECONDS = 0.05
"""A paste in one burst has ended when no key came for so long."""
ENTER_KEYS = (Keys.ControlJ, Keys.ControlM)


class TypeAhead:
    """Reads the keyboard while a chat starts or a turn runs, and gives the keys to the next prompt.

    Left in the terminal's own queue, each line of a paste would be sent as a message or taken as the answer to a
    question, and a full queue would hold back Ctrl-C.
    """

    def __init__(self, source: Input) -> None:
        self._source = source
        self._keys: list[KeyPress] = []
        self._parser = Vt100Parser(self._keys.append)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_held = False

    @contextlib.contextmanager
    def hold(self, *, as_one_message: bool = False) -> Iterator[None]:
        """Within, keys are read and neither shown nor used; Ctrl-C remains a signal.

        `as_one_message`: several lines are one paste. A terminal marks a paste only if it was asked to before, so
        the lines of one that began before the program cannot be told from typed ones.
        """
        terminal = self._source.fileno()
        try:
            before = termios.tcgetattr(terminal)
        except termios.error:
            yield  # not a terminal
            return
        quiet = [*before]
        quiet[0] &= ~termios.ICRNL
        quiet[3] &= ~(termios.ECHO | termios.ICANON)
        quiet[3] |= termios.NOFLSH  # Ctrl-C leaves a paste whole
        termios.tcsetattr(terminal, termios.TCSADRAIN, quiet)
        self._parser.reset()
        self._is_held = True
        self._listen()
        try:
            yield
        finally:
            self._is_held = False
            quiet_seconds = QUIET_SECONDS if as_one_message and self._keys else 0
            while select.select([terminal], [], [], quiet_seconds)[0] and self._read():
                pass
            self._stop_listening()
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
            self._parser.flush()
            keys = join_lines(self._keys) if as_one_message else [*self._keys]
            store_typeahead(self._source, keys)
            self._keys.clear()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Within, a prompt reads the keyboard."""
        if not self._is_held:
            yield
            return
        self._stop_listening()
        try:
            yield
        finally:
            self._listen()

    def _listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._source.fileno(), self._read)
        _write(START_BRACKETED_PASTE)

    def _stop_listening(self) -> None:
        asyncio.get_running_loop().remove_reader(self._source.fileno())
        _write(END_BRACKETED_PASTE)

    def _read(self) -> bool:
        """Take the keys that are there; False if the terminal is closed."""
        try:
            data = os.read(self._source.fileno(), MAX_READ_BYTES)
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._source.fileno())
            return False
        self._parser.feed(self._decoder.decode(data))
        return True


def join_lines(keys: Sequence[KeyPress]) -> list[KeyPress]:
    """Return several lines as one paste that is not sent yet; one line as it was typed, with its Enter."""
    text = "".join(
        "\n" if press.key in ENTER_KEYS else press.data
        for press in keys
        if press.key in (*ENTER_KEYS, Keys.ControlI, Keys.BracketedPaste)
        or press.data.isprintable()
    ).rstrip("\n")
    if "\n" not in text:
        return [*keys]
    return [KeyPress(Keys.BracketedPaste, text)]


def _write(sequence: str) -> None:
    sys.stdout.write(sequence)
    sys.stdout.flush()
