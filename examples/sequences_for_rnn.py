"""Makes sequences for R2D2: n-step returns, chunks, and a burn-in.

    python -m examples.sequences_for_rnn

It prints, for a terminated episode with rewards from 1 to 6:

    burn-in of observations [0] then rewards [3.5, 5.0] discounts [0.25, 0.25]
    burn-in of observations [3] then rewards [8.0, 6.0] discounts [0.0, 0.0]
"""

import numpy as np

import rlds2reverb
from rlds2reverb import formats
from rlds2reverb import windows


def make_chunks(episode):
  # The 2-step return, and the discount gamma**2, or 0 at the end.
  rows = windows.n_step_transitions(episode['steps'], n_step=2, gamma=0.5)
  return windows.unroll(
      rows, rlds2reverb.Windows(3, stride=3, end='repeat_last')
  )


def main() -> None:
  episodes = formats.load(
      {
          'observations': np.arange(6),
          'next_observations': np.arange(6) + 1,
          'actions': np.zeros(6, np.float32),
          'rewards': np.arange(1, 7, dtype=np.float32),
          'terminals': np.arange(6) == 5,
      }
  )
  # A trainer shuffles the chunks, and uses larger batches.
  for chunk in episodes.map(make_chunks).unbatch().batch(1):
    parts = windows.split_burn_in(chunk, burn_in=1)
    print(
        f'burn-in of observations {parts.burn_in_observation[0].numpy()} then'
        f' rewards {parts.reward[0].numpy().tolist()}'
        f' discounts {parts.columns["discount"][0].numpy().tolist()}'
    )


if __name__ == '__main__':
  main()
