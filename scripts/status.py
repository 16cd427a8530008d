"""Asks running Reverb servers what their tables hold, and prints it.

    rlds2reverb-status --server_address=localhost:8000

The exit code is 1 if one of them does not answer.
"""

import json

from absl import flags
from etils import epy

from rlds2reverb.jobs import usage

with epy.lazy_imports():  # After the flags are parsed: `--help` is at once.
  from rlds2reverb.jobs import server_status
  from rlds2reverb.replay.server import tables as tables_lib

flags.DEFINE_list(
    'server_address', None, 'A server, host:port, or several, joined by commas.'
)
flags.DEFINE_float(
    'timeout_seconds', 10.0, 'How long to wait for each.', lower_bound=0.0
)
flags.DEFINE_bool('json', False, 'Whether to print JSON instead of a table.')
FLAGS = flags.FLAGS


def main():
  usage.require('server_address')
  with usage.wrong_usage():
    for address in FLAGS.server_address:
      tables_lib.check_address(address)
  for address in FLAGS.server_address:
    tables = server_status.ask(address, FLAGS.timeout_seconds)
    if FLAGS.json:
      plain = {name: status._asdict() for name, status in tables.items()}
      print(json.dumps({'server': address, 'tables': plain}))
    else:
      print(f'{address}\n{server_status.to_text(tables)}')


if __name__ == '__main__':
  usage.run(main)
