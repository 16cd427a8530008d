"""Tests of what names the end of an episode."""

from absl.testing import absltest

from rlds2reverb.episodes import ends

_ALLOWED = (ends.EndOfEpisode.DROP, ends.EndOfEpisode.PAD)


class EndsTest(absltest.TestCase):

  def test_a_string_is_as_good_as_a_member(self):
    for value in ('pad', ends.EndOfEpisode.PAD):
      self.assertIs(
          ends.check_end('end_of_episode', value, _ALLOWED),
          ends.EndOfEpisode.PAD,
      )
    self.assertEqual(ends.EndOfEpisode.PAD, 'pad')

  def test_what_is_not_allowed(self):
    for value in ('cross', ends.EndOfEpisode.CROSS, 'none', None, 3):
      with self.assertRaisesRegex(
          ValueError, "end_of_episode must be one of 'drop', 'pad', but is"
      ):
        ends.check_end('end_of_episode', value, _ALLOWED)


if __name__ == '__main__':
  absltest.main()
