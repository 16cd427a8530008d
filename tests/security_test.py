"""Tests that each promise of docs/security.md has a test, and of some of them.

Here are those that no other file tests: ports, permissions, and what a video
may open.
"""

from collections.abc import Iterator
import os
import pathlib
import re
import socket
import stat
import time

from absl.testing import absltest
import pytest

from rlds2reverb.formats import video_frames
from tests import pages
from tests.jobs import job_testing

_PAGE = pathlib.Path(pages.ROOT, 'docs', 'security.md')
_HERE = 'tests/security_test.py'
_CHECKPOINT = 'tests/replay/checkpoint/validation_test.py'
_RLDS = 'tests/datasets/hostile_files_test.py'
_FORMATS = 'tests/formats/hostile_files_test.py'
_FUZZ = 'tests/fuzz_test.py', 'test_mutated_files_are_refused_or_read_correctly'
_LIMIT = 'test_limit_can_be_raised_by_environment_variable'
# By the bold start of a paragraph, a heading, or the first cell of a row: the
# files and the names of the tests.
_TESTS = {
    'Paths to other files.': [
        (_RLDS, 'test_a_template_that_leads_outside'),
        (_RLDS, 'test_a_place_that_the_user_allows'),
        (_FORMATS, 'test_a_template_of_lerobot_that_leads_outside'),
        (_FORMATS, 'test_a_column_of_torchrl_that_leads_outside'),
        (
            'tests/formats/hdf5_files_test.py',
            'test_link_to_another_file_is_refused_unless_allowed',
        ),
        (
            'tests/random_access/index_test.py',
            'test_files_other_than_the_indexed_ones_raise',
        ),
    ],
    'Metadata.': [(_HERE, 'test_a_video_opens_no_url')],
    'Pickles': [
        (
            'tests/formats/numpy_pickles_test.py',
            'test_pickles_of_other_types_raise',
        ),
        ('tests/formats/rllib_test.py', 'test_a_pickle_cannot_run_code'),
        ('tests/formats/damage_test.py', 'test_damaged_file_raises'),
    ],
    'Gin files': [
        ('tests/fields/configs_test.py', 'test_invalid_bindings_raise'),
        (
            'tests/fields/configs_test.py',
            'test_a_config_cannot_import_a_module',
        ),
        (
            'tests/fields/configs_test.py',
            'test_error_of_invalid_content_names_the_file',
        ),
    ],
    'checkpoint': [
        (_CHECKPOINT, 'test_invalid_numbers_in_records_raise'),
        (_CHECKPOINT, 'test_every_opener_refuses_damaged_checkpoints'),
        (_CHECKPOINT, 'test_weights_that_overflow_or_vanish'),
    ],
    'TFRecord on the local disk': [(_RLDS, 'test_a_record_of_gigabytes')],
    '`dataset_info.json`': [
        (_RLDS, 'test_a_template_that_leads_outside'),
        (_RLDS, 'test_numbers_of_episodes_that_cannot_be'),
    ],
    'ArrayRecord': [
        (
            'tests/datasets/array_record_test.py',
            'test_damaged_files_are_named',
        )
    ],
    '`EpisodesReplayBuffer(directory=)`, `build_index`': [
        ('tests/store/folders_test.py', 'test_folders_that_are_refused'),
        (
            'tests/store/folders_test.py',
            'test_damages_are_errors_or_have_the_content',
        ),
    ],
    '`TransitionIndex.save`': [
        (
            'tests/indexing/index_test.py',
            'test_arrays_with_shapes_beyond_their_files_raise',
        )
    ],
    'plan, receipts, summary of a job': [
        ('tests/jobs/odd_folders_test.py', 'test_a_plan_that_is_damaged'),
        (
            'tests/jobs/odd_folders_test.py',
            'test_a_receipt_or_a_summary_that_is_damaged',
        ),
        (
            'tests/jobs/odd_folders_test.py',
            'test_links_next_to_and_in_the_output_are_refused',
        ),
    ],
    'statistics': [
        (
            'tests/jobs/odd_folders_test.py',
            'test_damaged_statistics_and_saved_episodes_raise',
        ),
        (
            'tests/jobs/odd_folders_test.py',
            'test_a_sketch_of_statistics_that_is_damaged',
        ),
    ],
    'npz, CALVIN, imitation': [
        (_FORMATS, 'test_an_npz_file_of_more_rows_than_bytes'),
        (_FORMATS, 'test_a_frame_of_calvin'),
        (_FORMATS, 'test_truncated_bounds_of_calvin_raise'),
        ('tests/formats/damage_test.py', 'test_damaged_file_raises'),
    ],
    'HDF5': [
        (
            'tests/formats/hdf5_files_test.py',
            'test_link_to_another_file_is_refused_unless_allowed',
        ),
        (_FORMATS, 'test_hdf5_file_of_missing_rows'),
    ],
    'parquet, Arrow, zarr, RLlib': [
        ('tests/formats/one_bad_episode_test.py', ''),
        _FUZZ,
    ],
    'parquet': [(_FORMATS, 'test_a_parquet_file_of_long_lists')],
    'zarr': [
        (_FORMATS, 'test_zarr_buffer_of_missing_chunks'),
        (_FORMATS, 'test_zarr_buffer_of_many_missing_episodes'),
    ],
    'video': [(_FORMATS, 'test_a_video_of_many_pixels')],
    'images of `load_episodes`': [
        (_RLDS, 'test_an_image_that_is_larger_than_its_feature'),
        (_RLDS, 'test_images_that_expand'),
    ],
    'LeRobot': [(_FORMATS, 'test_a_template_of_lerobot_that_leads_outside')],
    'TorchRL': [
        (_FORMATS, 'test_a_column_of_torchrl_that_leads_outside'),
        _FUZZ,
    ],
    'Memory.': [(_CHECKPOINT, _LIMIT)],
    'a value': [
        (_CHECKPOINT, 'test_a_record_of_exabytes'),
        (_FORMATS, 'test_an_image_of_many_pixels'),
    ],
    'a file of a checkpoint': [
        (_CHECKPOINT, 'test_files_that_expand'),
        (_FORMATS, 'test_an_npz_file_that_expands'),
    ],
    'the frames of a video or the images of a field in an episode': [
        (_FORMATS, 'test_a_video_of_many_pixels'),
        (_RLDS, 'test_images_that_expand'),
    ],
    'Open ports': [(_HERE, 'test_a_job_has_no_ports_and_private_files')],
    'Permissions of outputs': [
        (_HERE, 'test_a_job_has_no_ports_and_private_files'),
        ('tests/datasets/atomic_writes_test.py', 'test_umask_sets_permissions'),
    ],
}
# They warn, and promise nothing.
_WARNINGS = (
    'Security',
    'Untrusted data',
    'RLDS data sets in the format of TFDS can run code.',
    'Saved policies',
    'can run any TensorFlow operation.',
)


def _promises() -> Iterator[str]:
  """Yields headings, bold words and the first cells of rows of the page."""
  for line in _PAGE.read_text('utf-8').splitlines():
    heading = re.match(r'#+ (.*)', line)
    if match := heading or re.match(r'\| (.*?)(?:: .*?)? \|', line):
      yield match[1]
    else:
      yield from re.findall(r'\*\*(.*?)\*\*', line)


def _listening(pid: int) -> list[str]:
  """Returns the TCP sockets on which a process listens, and those below it."""
  lines = []
  sockets = set()
  try:
    for path in os.scandir(f'/proc/{pid}/fd'):
      sockets.update(re.findall(r'socket:\[(\d+)\]', os.readlink(path)))
    for name in 'tcp', 'tcp6':
      for line in (
          pathlib.Path(f'/proc/{pid}/net/{name}').read_text().split('\n')[1:-1]
      ):
        fields = line.split()
        if fields[3] == '0A' and fields[9] in sockets:
          lines.append(line)
    children = [
        int(child)
        for path in pathlib.Path(f'/proc/{pid}/task').glob('*/children')
        for child in path.read_text().split()
    ]
  except OSError:  # It has ended.
    return lines
  return sum(map(_listening, children), lines)


class SecurityTest(job_testing.JobTestCase):

  def test_each_promise_has_a_test(self):
    rows = {
        one
        for one in _promises()
        if one not in _WARNINGS and one not in ('file', 'data', '---')
    }
    # The first row of limits has all of its kinds in the cell.
    known = set(_TESTS)
    missing = {
        row
        for row in rows
        if row not in known and row.split(',')[0] not in known
    }
    self.assertEmpty(missing)
    starts = rows | {row.split(',')[0] for row in rows}
    self.assertEmpty(known - starts)
    for promise, tests in _TESTS.items():
      for path, name in tests:
        text = pathlib.Path(pages.ROOT, path).read_text('utf-8')
        self.assertRegex(text, rf'  def {name or "test_"}', promise)

  def test_sockets_are_found(self):
    with socket.socket() as server:
      before = _listening(os.getpid())
      server.bind(('127.0.0.1', 0))
      server.listen()
      self.assertLen(_listening(os.getpid()), len(before) + 1)

  def test_a_video_opens_no_url(self):
    with socket.socket() as server:
      server.bind(('127.0.0.1', 0))
      server.listen()
      server.settimeout(0.5)
      url = f'http://127.0.0.1:{server.getsockname()[1]}/a.ts'
      path = self.create_tempfile('a.mp4').full_path
      for text in (
          f'#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{url}\n#EXT-X-ENDLIST',
          f"ffconcat version 1.0\nfile '{url}'\n",
          f'[playlist]\nFile1={url}\n',
      ):
        pathlib.Path(path).write_text(text, encoding='utf-8')
        with self.assertRaisesRegex(ValueError, re.escape(path)):
          list(video_frames.read_frames(path, [0.0]))
        with self.assertRaises(TimeoutError):  # Nobody has connected.
          server.accept()

  @pytest.mark.long
  def test_a_job_has_no_ports_and_private_files(self):
    output = self.new()
    before = os.umask(0o077)
    try:
      process = self.start_convert(output, '--num_workers=2')
    finally:
      os.umask(before)
    num_looks = 0
    while process.poll() is None:
      self.assertEmpty(_listening(process.pid))
      num_looks += 1
      time.sleep(0.1)
    self.assert_completes(process, output)
    self.assertGreater(num_looks, 10)
    paths = [
        path
        for place in (output, f'{output}.job')
        for path in (pathlib.Path(place), *pathlib.Path(place).rglob('*'))
    ]
    self.assertGreater(len(paths), 8)
    for path in paths:
      self.assertEqual(stat.S_IMODE(path.stat().st_mode) & 0o077, 0, path)


if __name__ == '__main__':
  absltest.main()
