"""Opens pseudo-terminals and records the output written to them."""

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
    chunks: the pieces of text that were written so far.
  """

  descriptor: int
  chunks: list[str]

  @property
  def text(self) -> str:
    return ''.join(self.chunks)


@contextlib.contextmanager
def open_terminal(columns: int) -> Iterator[Terminal]:
  """Yields a terminal whose output is read until the context ends.

  Args:
    columns: the width. A terminal of 0 columns has no known size, like that of
      `docker run -t`.
  """
  master, slave = pty.openpty()
  size = struct.pack('HHHH', 24 if columns else 0, columns, 0, 0)
  fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
  terminal = Terminal(slave, [])

  def read():
    with contextlib.suppress(
        OSError
    ):  # Linux raises it when the terminal closes.
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
