"""Tests of damaged files and of links in the folders of jobs and outputs."""

import os
import pathlib
import re
import shutil

from absl.testing import absltest
from absl.testing import parameterized
import pytest
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import saving
from rlds2reverb.jobs import convert
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import processes
from rlds2reverb.statistics import compute
from tests.jobs import job_testing

_DAMAGES = {
    'empty': b'',
    'zeros': b'\0' * 100,
    'cut': b'{"data_sets": [',
    'foreign': b'{"x": 1}',
    'list': b'[1, 2]',
    'null': b'null',
    'number': b'7',
    'binary': bytes(range(128, 256)),
}


class OddFoldersTest(job_testing.JobTestCase):

  def _precious(self):
    folder = pathlib.Path(self.new('precious'))
    folder.mkdir()
    (folder / 'file').write_text('precious')
    return folder

  def _check_precious(self, folder):
    self.assertEqual(os.listdir(folder), ['file'])
    self.assertEqual((folder / 'file').read_text(), 'precious')

  def test_a_plan_that_is_damaged(self):
    plan = self.plan()
    path = pathlib.Path(self.job_folder(plan), 'plan.json')
    path.parent.mkdir()
    whole_text = plan.to_json().encode()
    half = whole_text[: len(whole_text) // 2]
    strange = whole_text.replace(b'"begin"', b'"b"').replace(b'"tasks"', b'"t"')
    for content in [*_DAMAGES.values(), half, strange]:
      path.write_bytes(content)
      message = f'{path} is damaged: .*If {path.parent} is the folder of a job'
      self.assert_fails(OSError, message, plan)
      self.assertEqual(path.read_bytes(), content)
      self.assertFalse(os.path.exists(plan.output.place))
    path.unlink()
    self.convert(plan)

  def test_a_receipt_or_a_summary_that_is_damaged(self):
    plan = self.plan()
    self.convert(plan)
    summary = pathlib.Path(self.job_folder(plan), 'summary.json')
    for name, number in ('receipts/00002.json', 2), ('summary.json', None):
      path = pathlib.Path(self.job_folder(plan), name)
      content = path.read_bytes()
      damages = list(_DAMAGES.values())
      if number is None:
        damages.remove(_DAMAGES['foreign'])  # There is no such a summary.
      else:
        text = content.decode()
        damages += [
            text.replace('"task": 2', '"task": 1').encode(),
            text.replace('"episodes"', '"episode"').encode(),
            text.replace('"skipped": []', '"skipped": 3').encode(),
            text.replace('"count"', '"counts"').encode(),
            text.replace('"sum"', '"sums"').encode(),
            re.sub('"min": [^,]*', '"min": "x"', text).encode(),
            text.replace('"nan": {}', '"nan": 3').encode(),
            re.sub('nals": [0-9]+', 'nals": {}', text).encode(),
        ]
      for damage in damages:
        path.write_bytes(damage)
        self.assert_fails(OSError, f'{path} is damaged: .* Remove ', plan)
      path.write_bytes(content)
    self.convert(plan)
    summary.unlink()  # As if the job had been stopped before.
    receipt = pathlib.Path(self.job_folder(plan), 'receipts', '00002.json')
    receipt.write_text('')
    message = 'it is empty. Remove it: its task is then repeated'
    self.assert_fails(OSError, message, plan)

  def test_a_sketch_of_statistics_that_is_damaged(self):
    class Stopped(processes.InProcessEngine):

      def join(self, job_runner):
        raise KeyboardInterrupt

    plan = self.plan(plan_lib.STATISTICS, episodes_per_task=4)
    with self.assertRaises(KeyboardInterrupt):
      self.convert(plan, engine=Stopped())
    part = pathlib.Path(self.job_folder(plan), 'parts', '00000001')
    path = part / 'sketch.npz'
    content = path.read_bytes()
    place = content.index(b'PK\5\6') + 16  # Of its directory.
    before = content[:place] + b'\xff' * 3 + content[place + 3 :]
    odd = content[:99] + b'x' + content[100:]
    for damage in b'', content[:-1], odd, before:
      path.write_bytes(damage)
      message = (
          f'{path} is damaged: .* Remove {part}: its task is then repeated'
      )
      self.assert_fails((OSError, convert.JobError), message, plan)
    shutil.rmtree(part)
    self.convert(plan)
    other = self.plan(plan_lib.STATISTICS, episodes_per_task=4)
    self.convert(other)
    actual, expected = (
        pathlib.Path(each.output.place, 'statistics.json').read_text()
        for each in (plan, other)
    )
    self.assertEqual(actual, expected)

  @parameterized.parameters(plan_lib.CHECKPOINT, plan_lib.RLDS)
  @pytest.mark.long
  def test_links_next_to_and_in_the_output_are_refused(self, kind):
    precious = self._precious()
    for place in (
        '.out.unfinished',
        '.out.replaced',
        '.out.lock',
        '.out.job.lock',
        'out.job/.lock',
        'out.job/plan.json',
        'out.job/.plan.json.unfinished',
        'out.job/receipts',
        'out.job/receipts/00001.json',
        'out.job/receipts/.00001.json.unfinished',
        'out.job/parts',
        'out.job/parts/00000001',
        'out.job/parts/.00000001.unfinished',
        'out.job/summary.json',
        'out.job/quarantine.jsonl',
    ):
      # A folder, a file, and nothing.
      for target in precious, precious / 'file', precious / 'new':
        plan = self.plan(kind, self.new('out'))
        path = pathlib.Path(plan.output.place).parent / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
        with self.subTest(place=place, target=target.name):
          try:
            self.convert(plan)
          except OSError as e:
            self.assertIn(f'{path} is a symbolic link', str(e))
          else:  # It is a lock or a file that this kind does not write.
            self.assertIn(place, ('.out.job.lock',))
          self._check_precious(precious)

  def test_write_text_refuses_links(self):
    precious = self._precious()
    for name in '.text.unfinished', '.text.lock':
      folder = pathlib.Path(self.new('folder'))
      folder.mkdir()
      (folder / name).symlink_to(precious / 'file')
      with self.assertRaisesRegex(OSError, f'{name} is a symbolic link'):
        files.write_text(str(folder / 'text'), 'other')
      self._check_precious(precious)
      self.assertTrue((folder / name).is_symlink())

  def test_file_instead_of_unfinished_folder_is_kept(self):
    place = pathlib.Path(self.new())
    unfinished = place.parent / f'.{place.name}.unfinished'
    unfinished.write_text('mine')
    message = f'{unfinished} is a file, where a folder is written'
    with self.assertRaisesRegex(OSError, message):
      with files.new_folder(str(place), []):
        pass
    self.assertEqual(unfinished.read_text(), 'mine')

  @parameterized.parameters(*_DAMAGES.items())
  def test_damaged_statistics_and_saved_episodes_raise(self, name, content):
    path = pathlib.Path(self.new('statistics.json'))
    path.write_bytes(content)
    with self.assertRaisesRegex(OSError, f'{path} is damaged: '):
      compute.load_statistics(path)
    folder = pathlib.Path(self.new('saved'))
    folder.mkdir()
    (folder / 'saved_episodes.json').write_bytes(content)
    data = tf.data.Dataset.from_tensors(
        {
            'steps': {
                'observation': tf.zeros([2, 1]),
                'action': tf.zeros([2, 1]),
                'reward': tf.zeros([2]),
                'discount': tf.ones([2]),
                'is_first': [True, False],
                'is_last': [False, True],
                'is_terminal': [False, True],
            }
        }
    )
    error = FileExistsError if name == 'foreign' else OSError
    with self.assertRaisesRegex(error, str(folder)):
      saving.save_episodes(data, folder)


if __name__ == '__main__':
  absltest.main()
