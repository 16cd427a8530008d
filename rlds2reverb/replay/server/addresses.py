"""Addresses of Reverb servers."""

import re

_MAX_PORT = 65535


def check_address(address: str) -> None:
  """Raises a ValueError if `address` is not a host and a port: `host:8000`.

  Reverb itself would wait for a server that cannot be there.
  """
  host, _, port = address.rpartition(':')
  if not host or not re.fullmatch('[0-9]+', port):
    raise ValueError(
        f'The address of a server must be host:port, such as localhost:8000,'
        f' but is {address!r}.'
    )
  if not 0 < int(port) <= _MAX_PORT:
    raise ValueError(
        f'The port of a server must be between 1 and {_MAX_PORT}, but is'
        f' {port} in {address!r}.'
    )
