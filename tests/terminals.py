"""Pseudo-terminals, and what is shown on them."""

from collections.abc import Iterator
import contextlib
import fcntl
import os
import pty
import struct
import termios
import threading
from typing import NamedTuple


class Terminal(NamedTuple):
  """A pseudo-terminal.

  Attributes:
    descriptor: the file descriptor for programs.
    chunks: the text that was written so far.
  """

  descriptor: int
  chunks: list[str]

  @property
  def text(self) -> str:
    return ''.join(self.chunks)


@contextlib.contextmanager
def open_terminal(columns: int) -> Iterator[Terminal]:
  """Yields a terminal that is read until the end of the block.

  Args:
    columns: the width; 0 is a terminal that does not know its size, as of
      `docker run -t`.
  """
  master, slave = pty.openpty()
  size = struct.pack('HHHH', 24 if columns else 0, columns, 0, 0)
  fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
  terminal = Terminal(slave, [])

  def read():
    with contextlib.suppress(OSError):  # Linux's end of a terminal.
      while data := os.read(master, 1 << 16):
        terminal.chunks.append(data.decode(errors='replace'))

  reader = threading.Thread(target=read)
  reader.start()
  try:
    yield terminal
  finally:
    os.close(slave)
    reader.join()
    os.close(master)
