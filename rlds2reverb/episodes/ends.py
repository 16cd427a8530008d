"""`EndOfEpisode` says what becomes of rows that do not fill a window."""

import enum
from typing import Iterable, Union

from rlds2reverb.episodes import checks


class EndOfEpisode(str, enum.Enum):
  """What becomes of the last rows of an episode, where windows are cut.

  A window is `L` consecutive rows, and the next window starts `S` rows later.
  Here are the windows of an episode of 6 rows and of one of 2 rows, with L=3
  and S=2. `P` is a row of padding, and a lower-case letter is a row that
  repeats the last one. The mask is False for both:

      rows             0 1 2 3 4 5              | 6 7
      DROP             0 1 2   2 3 4            |
      PAD              0 1 2   2 3 4            | 6 7 P
      TILE             0 1 2   2 3 4   4 5 P    | 6 7 P
      ZERO_PAD         0 1 2   2 3 4   4 5 P    | 6 7 P
      REPEAT_LAST      0 1 2   2 3 4   4 5 e    | 6 7 g     (e is 5, g is 7)
      OVERLAP          0 1 2   2 3 4   3 4 5    | 6 7 P
      CROSS            0 1 2   2 3 4   4 5 6

  Every function says which of these it accepts. It also accepts the plain
  string of each, such as `'drop'`.

  Attributes:
    DROP: windows that are not full are left out.
    PAD: an episode that is shorter than a window is padded to one window. The
      rows left over in a longer episode are left out. This is the
      `pad_end_of_episodes` of TF-Agents.
    TILE: a window starts at every S-th row of the episode, and is padded if it
      reaches beyond the last one. This is the `tile_end_of_episodes` of
      TF-Agents.
    ZERO_PAD: if rows are left over, one more window is made of them and padded.
    REPEAT_LAST: as ZERO_PAD, but the last row is repeated instead of padding.
    OVERLAP: if rows are left over, one more window is made that starts earlier,
      so that it ends with the episode. An episode that is shorter than a window
      is padded.
    CROSS: windows continue into the next episode.
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
    allowed: the ends that the function accepts.

  Raises:
    ValueError: if `value` is not one of `allowed`.
  """
  checks.check_choice(name, value, [end.value for end in allowed])
  return EndOfEpisode(value)
