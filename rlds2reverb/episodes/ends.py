"""What becomes of the end of an episode that fills no whole window."""

import enum
from typing import Iterable, Union

from rlds2reverb.episodes import checks


class EndOfEpisode(str, enum.Enum):
  """What becomes of the last rows of an episode, where windows are cut.

  A window is `L` consecutive rows, and the next one starts `S` rows later.
  Here are the windows of an episode of 6 rows and of one of 2 rows, with L=3
  and S=2. P is a row of zeros, which marks the end of an episode, and lower
  case is a row that was filled in, which the mask leaves out:

      rows             0 1 2 3 4 5              | 6 7
      DROP             0 1 2   2 3 4            |
      PAD              0 1 2   2 3 4            | 6 7 P
      TILE             0 1 2   2 3 4   4 5 P    | 6 7 P
      ZERO_PAD         0 1 2   2 3 4   4 5 P    | 6 7 P
      REPEAT_LAST      0 1 2   2 3 4   4 5 e    | 6 7 g     (e is 5, g is 7)
      OVERLAP          0 1 2   2 3 4   3 4 5    | 6 7 P
      CROSS            0 1 2   2 3 4   4 5 6

  Every function says which of them it takes; a plain string such as `'drop'`
  does as well.

  Attributes:
    DROP: A window that is not full is left out.
    PAD: One padded window is made of an episode that is shorter than a window.
      Of longer episodes the end is left out. TF-Agents'
      `pad_end_of_episodes`.
    TILE: A window starts at every S-th row of the episode, up to the last one,
      padded where it needs to be. TF-Agents' `tile_end_of_episodes`.
    ZERO_PAD: One padded window is made where rows are left over.
    REPEAT_LAST: The same, but the last row is repeated in place of padding.
    OVERLAP: Where rows are left over, one more window starts early enough to
      end with the episode. An episode shorter than a window is padded.
    CROSS: Windows go on into the next episode.
  """

  DROP = 'drop'
  PAD = 'pad'
  TILE = 'tile'
  ZERO_PAD = 'zero_pad'
  REPEAT_LAST = 'repeat_last'
  OVERLAP = 'overlap'
  CROSS = 'cross'


def check_end(
    name: str, value: Union[str, EndOfEpisode], allowed: Iterable[EndOfEpisode]
) -> EndOfEpisode:
  """Returns the `EndOfEpisode` that an argument means.

  Args:
    name: the name of the argument, for the message of an error.
    value: an `EndOfEpisode`, or the string that it is equal to.
    allowed: what the function takes.

  Raises:
    ValueError: if `value` is none of `allowed`.
  """
  checks.check_choice(name, value, [end.value for end in allowed])
  return EndOfEpisode(value)
