"""Tests of receipts, and of what they keep of invalid episodes."""

import os

from absl.testing import absltest

from rlds2reverb.jobs import receipts

_BAD = receipts.Bad(
    'd/1.0.0', '/d', 'train', '/d/f', 7, 2, 'A rule.', 'x=1', 'A rule. x=1.'
)


def _receipt(task, plan='plan'):
  return receipts.Receipt(
      task=task,
      plan=plan,
      data='0123',
      episodes=3,
      steps=9,
      items={'t': 6},
      num_bytes=100,
      skipped=[_BAD],
      filtered=0,
      statistics={},
      seconds=0.5,
      output={'bytes': 1},
  )


class ReceiptsTest(absltest.TestCase):

  def test_what_is_written_is_read(self):
    folder = self.create_tempdir().full_path
    self.assertEqual(receipts.read(folder, 'plan'), {})
    for receipt in _receipt(0), _receipt(12), _receipt(3, 'another'):
      receipts.write(folder, receipt)
    self.assertEqual(
        receipts.read(folder, 'plan'), {0: _receipt(0), 12: _receipt(12)}
    )
    receipts.remove(folder, 0)
    self.assertSameElements(receipts.read(folder, 'plan'), [12])
    # Nothing but receipts stays there.
    self.assertEqual(
        sorted(os.listdir(os.path.join(folder, 'receipts'))),
        ['00003.json', '00012.json'],
    )


if __name__ == '__main__':
  absltest.main()
