"""Prints the status of the tables of running Reverb servers.

    rlds2reverb-status --server_address=localhost:8000

The exit code is 1 if a server does not answer.
"""

import json

from absl import flags
from etils import epy

from rlds2reverb.jobs import usage

with epy.lazy_imports():  # So that `--help` is fast.
  from rlds2reverb.jobs import serve
  from rlds2reverb.replay.server import tables as tables_lib

flags.DEFINE_list(
    'server_address', None, 'A server, host:port, or several, joined by commas.'
)
flags.DEFINE_float(
    'timeout_seconds', 10.0, 'The timeout for each server.', lower_bound=0.0
)
flags.DEFINE_bool('json', False, 'Whether to print JSON instead of a table.')
FLAGS = flags.FLAGS


def main():
  usage.require('server_address')
  with usage.wrong_usage():
    for address in FLAGS.server_address:
      tables_lib.check_address(address)
  for address in FLAGS.server_address:
    tables = serve.get_status(address, FLAGS.timeout_seconds)
    if FLAGS.json:
      plain = {name: status._asdict() for name, status in tables.items()}
      print(json.dumps({'server': address, 'tables': plain}))
    else:
      print(f'{address}\n{serve.format_status(tables)}')


if __name__ == '__main__':
  usage.run(main)
