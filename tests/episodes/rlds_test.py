from absl.testing import absltest
import rlds as original

from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps


class RldsTest(absltest.TestCase):

  def test_names_are_those_of_rlds(self):
    names = [
        name
        for name, value in vars(rlds).items()
        if isinstance(value, str) and name.isupper()
    ]
    for name in names:
      self.assertEqual(getattr(rlds, name), getattr(original, name))
    self.assertCountEqual(
        steps.get_rlds_step_features(),
        [getattr(original, name) for name in names if name != 'STEPS'],
    )


if __name__ == '__main__':
  absltest.main()
