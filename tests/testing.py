"""A real Reverb server for tests, and what its tables hold."""

import contextlib

import reverb
from tf_agents.specs import tensor_spec
import tree

TABLE = 'experience'


@contextlib.contextmanager
def reverb_server(data_spec=None, *, signature=None, max_size=1000):
  """Starts a server, and yields a client of it.

  Args:
    data_spec: the spec of a frame, for the table's signature.
    signature: the table's signature, instead.
    max_size: of the table.

  Yields:
    The client. The table, `TABLE`, gives its items in the order in which they
    came, each once.
  """
  if data_spec is not None:
    signature = tensor_spec.add_outer_dim(data_spec)
  table = reverb.Table(
      TABLE,
      sampler=reverb.selectors.Fifo(),
      remover=reverb.selectors.Fifo(),
      max_size=max_size,
      max_times_sampled=1,
      rate_limiter=reverb.rate_limiters.MinSize(1),
      signature=signature,
  )
  server = reverb.Server([table])
  try:
    yield reverb.Client(f'localhost:{server.port}')
  finally:
    server.stop()


def size(client):
  return client.server_info()[TABLE].current_size


def drain(client):
  """Returns the items of the table, oldest first, as lists of frames."""
  items = []
  for sample in client.sample(
      TABLE,
      num_samples=size(client),
      emit_timesteps=False,
      unpack_as_table_signature=True,
  ):
    length = len(tree.flatten(sample.data)[0])
    items.append([
        tree.map_structure(lambda leaf: leaf[step], sample.data)  # pylint: disable=cell-var-from-loop
        for step in range(length)
    ])
  return items
