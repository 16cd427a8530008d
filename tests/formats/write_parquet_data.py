"""Writes tests/data/parquet: tables that Hugging Face `datasets` has written.

    python -m tests.formats.write_parquet_data tests/data/parquet

Needs a separate environment with datasets 4.8.5. `steps` has a row for each
step, in two files, and `episodes.parquet` a row for each episode, with the
column names of edbeeching/decision_transformer_gym_replay.
"""

import os

from absl import app
import datasets
import numpy as np

_LENGTHS = (2, 4, 3)


def _steps():
  """Returns the columns of all steps; the second episode is terminal."""
  run = np.repeat(['b', 'a', 'c'], _LENGTHS)
  rows = np.arange(sum(_LENGTHS))
  return {
      'run': run.tolist(),
      'obs': np.stack([rows, -rows], 1).astype(np.float32).tolist(),
      'actions': (rows % 3).tolist(),
      'rewards': (rows / 2).tolist(),
      'terminals': (rows == 5).tolist(),
      'image': [np.full((4, 4, 3), 9 * row, np.uint8) for row in rows],
  }


def main(argv):
  _, directory = argv
  folder = os.path.join(directory, 'steps')
  os.makedirs(folder, exist_ok=True)
  steps = datasets.Dataset.from_dict(
      _steps(),
      features=datasets.Features(
          {
              'run': datasets.Value('string'),
              'obs': datasets.Sequence(datasets.Value('float32'), length=2),
              'actions': datasets.Value('int32'),
              'rewards': datasets.Value('float32'),
              'terminals': datasets.Value('bool'),
              'image': datasets.Image(),
          }
      ),
  )
  # The second episode begins in one file and ends in the other.
  for index, rows in enumerate((range(4), range(4, 9))):
    steps.select(rows).to_parquet(
        os.path.join(folder, f'train-0000{index}-of-00002.parquet')
    )
  begins = np.cumsum((0, *_LENGTHS))
  columns = _steps()
  episodes = {
      name: [columns[name][b:e] for b, e in zip(begins[:-1], begins[1:])]
      for name in ('obs', 'actions', 'rewards', 'terminals')
  }
  features = datasets.Features(
      {
          'observations': datasets.Sequence(
              datasets.Sequence(datasets.Value('float32'))
          ),
          'actions': datasets.Sequence(datasets.Value('int32')),
          'rewards': datasets.Sequence(datasets.Value('float32')),
          'dones': datasets.Sequence(datasets.Value('bool')),
          'task': datasets.Value('string'),
      }
  )
  datasets.Dataset.from_dict(
      {
          'observations': episodes['obs'],
          'actions': episodes['actions'],
          'rewards': episodes['rewards'],
          'dones': episodes['terminals'],
          'task': ['lift', 'push', 'lift'],
      },
      features=features,
  ).to_parquet(os.path.join(directory, 'episodes.parquet'))


if __name__ == '__main__':
  app.run(main)
