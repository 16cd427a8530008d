"""Tests of what programs say to command lines that cannot work: a line.

The commands of a program run in one process. A data set `data` is in the folder
of the user.
"""

import importlib.util
import os
import re
import shlex
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest

from tests.jobs import data_sets
from tests.scripts import in_process

# For each program: arguments and the message. The first commands are invalid
# for any data, and have exit code 2. Commands after `FAILED` have exit code 1.
_COMMANDS = r"""
convert
 => --dataset must have a value
--datset=x => There is no flag --datset. Did you mean --dataset?
DATA => One of --checkpoint_dir, --server_address, --rlds_dir
NEXT --rlds_dir=o => One of --checkpoint_dir, --server_address
NEXT more => Unknown arguments: more.
DATA --checkpoint_dir= => --checkpoint_dir must not be empty
NEXT --sequence_length=-1 => in the range [0, 2147483647]
NEXT --stride_length=0 => in the range [1, 2147483647]
NEXT --end_of_episode=cross => <drop|pad|tile|zero_pad|overlap>
NEXT --sequence_length=0 --stride_length=2 => episodes, which have no --stride
NEXT --priority=inf => --priority must be a finite number, but is
NEXT --priority=-1 => must be a finite number from 0 up, but is -1
NEXT --task_mb=-1 => --task_mb=-1
NEXT --num_workers=0 => is not a positive integer
NEXT --num_workers=9999999999999999999 => must be below 2**63
NEXT --terminal_discount=last => one of <step|transition>
NEXT --max_invalid_fraction=2 => in the range [0.0, 1.0]
NEXT --max_invalid_fraction=0.1 => no effect without --invalid_episodes=skip.
NEXT --weight=-1 => and be positive, but is [-1.0] for 1 data set
NEXT --weight=1 --weight=2 => but is [1.0, 2.0] for 1 data set
NEXT --split=a --split=b => There are 2 values of --split, but 1 of --dataset
NEXT --config=nope.gin => nope.gin
NEXT --gin_binding="x = =" => Unable to parse value.
NEXT --gin_binding="convert.num_workers = 0" => convert.num_workers is bound to
NEXT --gin_binding="convert.num_workrs = 1" => Did you mean num_workers?
NEXT --gin_binding="ConversionRules.nan = 'maybe'" => maybe
NEXT --table=a --table=a => The tables must differ
NEXT --format=robomimik => Did you mean robomimic?
DATA --server_address=:8000 => must be host:port, such as
DATA --server_address=localhost:0 => from 1 to 65535
DATA --server_address=a:1,,b:2 => but is ''
DATA --rlds_dir=o --table=x => has no effect with --rlds_dir. Remove it.
DATA --statistics_dir=o --priority=2 => no effect with --statistics_dir.
NEXT --dask_scheduler=localhost => missing port number in
NEXT --dask_scheduler=foo://a:1 => 'foo'
NEXT --dask_scheduler=a:1 --runner=b => has no effect with
NEXT --runner=FlinkRunner => pip install '.[beam]'
MIXED => --mixture needs --data_dir
MIXED --data_dir=x --weight=1 => Remove --weight.
MIXED --data_dir=x --dataset=data => Remove --dataset, --config and --format.
MIXED --data_dir=x --split=a --split=b => --mixture takes one --split
--mixture=oxe_magic_soop --data_dir=x --rlds_dir=o => Did you mean oxe_magic_s
FAILED
--dataset=empty --checkpoint_dir=out => is not the folder of a data set
--dataset=file --checkpoint_dir=out => is neither a directory nor the name of
NEXT --split=train[5:] => incompatible with 3 examples
DATA --rlds_dir=foo://x/y => no file system for foo://
NEXT --job_dir=file => file
DATA --server_address=localhost:1 => no answer from a Reverb
NEXT --dataset=data => are in two sources
--dataset=x --format=python --rlds_dir=o => must be module:function
--dataset=no:f --format=python --rlds_dir=o => There is no function no:f
DATA --format=lerobot --rlds_dir=o => which load_episodes
serve
 => --dataset must have a value
--prot=8000 => Did you mean --port or --priority?
DATA --port=0 => in the range [1, 65535]
DATA --dataset=data => Serve one --dataset
DATA --checkpoint_dir=c => Pass --dataset or --checkpoint_dir
DATA --checkpoint_minutes=5 => needs a --checkpoint_root
DATA --keep_checkpoints=0 => is not a positive integer
DATA --gin_binding="serve.prot = 1" => Did you mean port or priority?
--checkpoint_dir=c --table=x => has no effect with --checkpoint_dir. Remove it
FAILED
--checkpoint_dir=data => is not a complete Reverb checkpoint
DATA --checkpoint_root=foo://x => no file system for foo://
status
 => --server_address must have a value
--server_address=localhost => must be host:port
--server_address=a:1 --timeout_seconds=-1 => --timeout_seconds=-1
FAILED
--server_address=localhost:1 --timeout_seconds=1 => There is no answer
describe
 => --dataset must have a value
DATA --sample=0 => is not a positive integer
DATA --episode_column=run => The reader of rlds has no option 'episode_column'
--dataset=x.npz --column_names=obs => --column_names must be pairs such as
DATA --dataset=data => Describe one --dataset at a time
DATA --checkpoint_dir=c => Pass --dataset or --checkpoint_dir
FAILED
DATA --html=/proc/no/page.html => cannot be written
DATA --tensorboard_dir=/proc/no => cannot be written
--checkpoint_dir=dota => does not exist. Did you mean data?
--dataset=odd.npz => pass column_names={'observations': ...}.
--dataset=none.h5 => There is no file or folder
--dataset=file => but a file. Read a file of another format by formats.load(
--dataset=a/b => name it: formats.load('a/b', format='lerobot')
--dataset=torn => numbered-train.tfrecord-00000 is damaged after 1 complete
validate
 => --dataset must have a value
DATA --limit=0 => is not a positive integer
DATA --validation=loose => one of <strict|tf_agents>
DATA --limt=3 => Did you mean --limit or
DATA --gin_binding="ConversionRules.nam = 1" => Did you mean nan?
FAILED
DATA --gin_binding="StepMapping.action = 'actoin'" => Did you mean action?
record_episodes
 => --directory must have a value
--directory=o --num_episodes=0 => is not a positive integer
--directory=o --randomness=2 => in the range [0.0, 1.0]
--directory=o --randomness=0.5 => --randomness needs a --policy
FAILED
--directory=/proc/data => /proc/data cannot be written
--directory=/proc => /proc is a mount point
--directory=full => is not empty
--directory=o --split="a b" => name of a split must be
validate_configs
--data=data => --data needs --config
FAILED
--config=brigde => Did you mean bridge
--config=bridge --data=dota => dota is neither a directory
build_index
 => --dataset must have a value
DATA => --index_dir must have a value
DATA --index_dir=i --format=npy => Did you mean npz?
DATA --index_dir=i --gin_binding="load_zarr.exclude = []" => is for options
"""
_SHORT = {
    'NEXT': '--dataset=data --checkpoint_dir=out',
    'DATA': '--dataset=data',
    'MIXED': '--mixture=oxe_magic_soup --rlds_dir=o',
}
_PROGRAMS = re.findall(r'^(\w+)\n((?:.*=> .*\n|FAILED\n)+)', _COMMANDS, re.M)


class BadCommandsTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = cls.enter_context(tempfile.TemporaryDirectory())
    data_sets.numbered(os.path.join(cls.folder, 'data'), [3, 4, 2])
    torn = data_sets.numbered(os.path.join(cls.folder, 'torn'), [3, 4])
    (file,) = data_sets.files_of(torn)
    os.truncate(file, os.path.getsize(file) - 5)
    os.mkdir(os.path.join(cls.folder, 'empty'))
    os.mkdir(os.path.join(cls.folder, 'full'))
    np.savez(os.path.join(cls.folder, 'odd.npz'), obs_state=np.zeros(3))
    for name in 'file', 'full/mine':
      with open(os.path.join(cls.folder, name), 'w', encoding='utf-8') as f:
        f.write('mine\n')

  @parameterized.parameters(*_PROGRAMS)
  @pytest.mark.long
  def test_bad_commands_print_one_line_and_set_exit_code(self, program, lines):
    names = sorted(os.listdir(self.folder))
    for flag, module in ('dask_scheduler', 'distributed'), ('runner', ''):
      is_there = importlib.util.find_spec(module or 'apache_beam')
      if bool(is_there) != bool(module):
        lines = re.sub(rf'NEXT --{flag}=.*\n', '', lines)
    invalid, _, failed = lines.partition('FAILED\n')
    expected = [
        (*line.split(' => '), code)
        for code, some in ((2, invalid), (1, failed))
        for line in some.splitlines()
    ]
    commands = []
    for command, _, _ in expected:
      short, _, more = command.partition(' ')
      commands.append(shlex.split(f'{_SHORT.get(short, short)} {more}'))
    results = in_process.run(
        program, commands, BUILD_WORKING_DIRECTORY=self.folder
    )
    for (command, message, code), result in zip(expected, results, strict=True):
      with self.subTest(command):
        self.assertEqual(result.code, code, result.stderr + result.stdout)
        self.assertIn(message, result.stderr)
        self.assertNotIn('Traceback', result.stderr)
        if code == 2:
          (line,) = result.stderr.strip().splitlines()
          self.assertEndsWith(line, ' See --help.')
    # Nothing is left behind.
    self.assertEqual(sorted(os.listdir(self.folder)), names)


if __name__ == '__main__':
  absltest.main()
