"""Tests of what programs say to command lines that cannot work: a line.

The commands of a program run in one process. A data set `data` is in the folder
of the user.
"""

import importlib.util
import os
import shlex
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import pytest

from tests.jobs import data_sets
from tests.scripts import in_process

_NEXT = '--dataset=data --checkpoint_dir=out'
_MIXED = '--mixture=oxe_magic_soup'
# For each program, what follows its name, and what it says. The first ones are
# wrong whatever the data is, and have exit code 2; those after `_FAILED`, 1.
_FAILED = None
_CONVERT = (
    ('', '--dataset must have a value'),
    ('--datset=x', 'There is no flag --datset. Did you mean --dataset?'),
    ('--num_worker=2', 'Did you mean --num_workers?'),
    ('--nothing_like_it=2', 'There is no flag --nothing_like_it.'),
    ('--dataset=data', 'One of --checkpoint_dir, --server_address, --rlds_dir'),
    (f'{_NEXT} --rlds_dir=o', 'One of --checkpoint_dir, --server_address'),
    (f'{_NEXT} more', 'Unknown arguments: more.'),
    ('--dataset=data --checkpoint_dir=', '--checkpoint_dir must not be empty'),
    (f'{_NEXT} --gin_binding=', '--gin_binding must not be empty'),
    (f'{_NEXT} --sequence_length=-1', 'in the range [0, 2147483647]'),
    (f'{_NEXT} --sequence_length=2.5', '--sequence_length=2.5'),
    (f'{_NEXT} --sequence_length=99999999999999999999', 'in the range [0,'),
    (f'{_NEXT} --stride_length=0', 'in the range [1, 2147483647]'),
    (f'{_NEXT} --end_of_episode=cross', '<drop|pad|tile|zero_pad|overlap>'),
    (
        f'{_NEXT} --sequence_length=0 --stride_length=2',
        'whole episodes, which have no --stride_length and no',
    ),
    (f'{_NEXT} --priority=inf', '--priority must be a finite number, but is'),
    (f'{_NEXT} --priority=-1', 'must be a finite number from 0 up, but is -1'),
    (f'{_NEXT} --task_mb=nan', '--task_mb must be a finite number'),
    (f'{_NEXT} --task_mb=-1', '--task_mb=-1'),
    (f'{_NEXT} --num_workers=0', 'is not a positive integer'),
    (f'{_NEXT} --num_workers=9999999999999999999', 'must be below 2**63'),
    (f'{_NEXT} --terminal_discount=last', 'one of <step|transition>'),
    (f'{_NEXT} --nan=ok', 'one of <report|invalid>'),
    (f'{_NEXT} --invalid_episodes=ignore', 'one of <raise|skip>'),
    (f'{_NEXT} --max_invalid_fraction=2', 'in the range [0.0, 1.0]'),
    (
        f'{_NEXT} --max_invalid_fraction=0.1',
        'has no effect without --invalid_episodes=skip. Leave it out.',
    ),
    (f'{_NEXT} --weight=-1', 'with a positive number'),
    (f'{_NEXT} --weight=1 --weight=2', 'but has [1.0, 2.0] for 1'),
    (f'{_NEXT} --split=a --split=b', '--split is there 2 times, and --dataset'),
    (f'{_NEXT} --config=d4rl_mujco', 'Did you mean d4rl_mujoco'),
    (f'{_NEXT} --config=nope.gin', 'nope.gin'),
    (f'{_NEXT} --gin_binding="x = ="', 'Unable to parse value.'),
    (f'{_NEXT} --gin_binding="nothing.x = 1"', 'names nothing, which is not'),
    (f'{_NEXT} --gin_binding="StepMapping.actoin = 1"', 'actoin'),
    (
        f'{_NEXT} --gin_binding="convert.num_workers = 0"',
        'convert.num_workers is bound to 0',
    ),
    (
        f'{_NEXT} --gin_binding="convert.num_workrs = 1"',
        'convert has no flag --num_workrs. Did you mean num_workers?',
    ),
    (
        f'{_NEXT} --gin_binding="convert.priority = 1e999"',
        'convert.priority must be a finite number',
    ),
    (f'{_NEXT} --gin_binding="ConversionRules.nan = \'maybe\'"', 'maybe'),
    (f'{_NEXT} --table=a --table=a', 'The tables must differ'),
    (f'{_NEXT} --format=robomimik', 'Did you mean robomimic?'),
    ('--dataset=data --server_address=:8000', 'must be host:port, such as'),
    ('--dataset=data --server_address=localhost:0', 'between 1 and 65535'),
    ('--dataset=data --server_address=a:1,,b:2', "but is ''"),
    *(
        (
            f'--dataset=data --{output}_dir=o --{flag}',
            f'has no effect with --{output}_dir. Leave it out.',
        )
        for output, flag in (
            ('rlds', 'table=x'),
            ('rlds', 'allow_empty'),
            ('statistics', 'priority=2'),
            ('statistics', 'terminal_discount=step'),
        )
    ),
    *(
        (
            (f'{_NEXT} --dask_scheduler=localhost', 'missing port number in'),
            (f'{_NEXT} --dask_scheduler=tcp://a:70000', 'between 1 and 65535'),
            (f'{_NEXT} --dask_scheduler=foo://a:1', "'foo'"),
            (f'{_NEXT} --dask_scheduler=a:1 --runner=b', 'has no effect with'),
        )
        if importlib.util.find_spec('distributed')
        else ()
    ),
    *(
        ()
        if importlib.util.find_spec('apache_beam')
        else ((f'{_NEXT} --runner=FlinkRunner', "pip install '.[beam]'"),)
    ),
    (f'{_MIXED} --rlds_dir=o', '--mixture needs --data_dir'),
    (f'{_MIXED}s --data_dir=x --rlds_dir=o', 'Did you mean oxe_magic_soup'),
    (f'{_MIXED} --weight=1 --data_dir=x --rlds_dir=o', 'Leave out --weight.'),
    (
        f'{_MIXED} --dataset=data --data_dir=x --rlds_dir=o',
        'Leave out --dataset, --config and --format.',
    ),
    (
        f'{_MIXED} --split=a --split=b --data_dir=x',
        '--mixture takes one --split',
    ),
    (_FAILED, ''),
    ('--dataset=./dota --checkpoint_dir=out', 'Did you mean data?'),
    ('--dataset=empty --checkpoint_dir=out', 'is not the folder of a data set'),
    (
        '--dataset=file --checkpoint_dir=out',
        'is neither a directory nor the name of a TFDS data set.\n',
    ),
    (f'{_NEXT} --split=train[5:]', 'incompatible with 3 examples'),
    (f'{_NEXT} --split=train[', 'train['),
    (f'{_NEXT} --only_quarantined=x', 'x'),
    (f'{_NEXT} --only_quarantined=file', 'is not of a quarantine file'),
    ('--dataset=data --rlds_dir=file', 'is a file, where a folder has to be'),
    ('--dataset=data --rlds_dir=data', 'is not empty, and not the output'),
    ('--dataset=data --checkpoint_dir=/proc/x', 'cannot be written'),
    ('--dataset=data --rlds_dir=foo://x/y', 'no file system for foo://'),
    (f'{_NEXT} --job_dir=file', 'file'),
    ('--dataset=data --server_address=localhost:1', 'no answer from a Reverb'),
    (
        f'{_NEXT} --gin_binding="StepMapping.action = \'actoin\'"',
        'Did you mean',
    ),
    (
        f'{_NEXT} --gin_binding="ConversionRules.validation = \'tf_agents\'"',
        'job',
    ),
    (f'{_NEXT} --dataset=data', 'are in two sources'),
    ('--dataset=x --format=python --rlds_dir=o', 'must be module:function'),
    ('--dataset=no:f --format=python --rlds_dir=o', 'There is no function'),
    ('--dataset=data --format=lerobot --rlds_dir=o', 'which load_episodes'),
)
_SERVE = (
    ('', '--dataset must have a value'),
    ('--prot=8000', 'Did you mean --port or --priority?'),
    ('--dataset=data --port=0', 'in the range [1, 65535]'),
    ('--dataset=data --port=65536', 'in the range [1, 65535]'),
    ('--dataset=data --port=http', '--port=http'),
    ('--dataset=data --dataset=data', 'Serve one --dataset'),
    ('--dataset=data --checkpoint_dir=c', 'Pass --dataset or --checkpoint_dir'),
    ('--dataset=data --checkpoint_at_end', 'needs a --checkpoint_root'),
    ('--dataset=data --checkpoint_minutes=5', 'needs a --checkpoint_root'),
    ('--dataset=data --keep_checkpoints=3', 'needs a --checkpoint_root'),
    ('--dataset=data --keep_checkpoints=0', 'is not a positive integer'),
    ('--dataset=data --metrics_port=0', 'in the range [1, 65535]'),
    ('--dataset=data --checkpoint_minutes=0', '--checkpoint_minutes=0'),
    ('--dataset=data --checkpoint_minutes=inf', 'must be a finite number'),
    ('--dataset=data --table=', '--table must not be empty'),
    ('--dataset=data --sequence_length=-1', 'in the range [0, 2147483647]'),
    (
        '--dataset=data --sequence_length=0 --stride_length=3',
        'which have no --stride_length and no --end_of_episode',
    ),
    (
        '--dataset=data --gin_binding="serve.prot = 1"',
        'Did you mean port or priority?',
    ),
    *(
        (
            f'--checkpoint_dir=c --{flag}',
            'has no effect with --checkpoint_dir. Leave it out.',
        )
        for flag in ('table=x', 'sequence_length=2', 'split=train', 'config=x')
    ),
    (_FAILED, ''),
    ('--checkpoint_dir=c', 'c'),
    ('--checkpoint_dir=data', 'is not a whole Reverb checkpoint'),
    ('--dataset=./dota', 'Did you mean data?'),
    ('--dataset=data --split=trian', 'Did you mean train?'),
    ('--dataset=data --sequence_length=50', "'experience' would have no items"),
    ('--dataset=data --checkpoint_root=foo://x', 'no file system for foo://'),
)
_STATUS = (
    ('', '--server_address must have a value'),
    ('--server_address=localhost', 'must be host:port'),
    ('--server_address=a:1 --timeout_seconds=-1', '--timeout_seconds=-1'),
    (_FAILED, ''),
    ('--server_address=localhost:1 --timeout_seconds=1', 'There is no answer'),
)
_DESCRIBE = (
    ('', '--dataset must have a value'),
    ('--dataset=data --sample=0', 'is not a positive integer'),
    ('--dataset=data --num_excerpts=-1', '--num_excerpts=-1'),
    ('--dataset=data --seed=99999999999999999999', 'must be below 2**63'),
    ('--dataset=data --html=', '--html must not be empty'),
    ('--dataset=data --jsn', 'Did you mean --json?'),
    ('--dataset=data --dataset=data', 'Describe one --dataset at a time'),
    ('--dataset=data --checkpoint_dir=c', 'Pass --dataset or --checkpoint_dir'),
    ('--checkpoint_dir=c --split=train', 'no effect with --checkpoint_dir'),
    ('--dataset=data --compare_with=', '--compare_with must not be empty'),
    ('--dataset=data --gin_binding="describe.jsn = 1"', 'Did you mean json?'),
    (_FAILED, ''),
    ('--dataset=data --html=/proc/no/page.html', 'cannot be written'),
    ('--dataset=./dota', 'Did you mean data?'),
    ('--checkpoint_dir=data', 'is not a whole Reverb checkpoint'),
    ('--checkpoint_dir=dota', 'does not exist. Did you mean data?'),
    (
        '--dataset=torn',
        'numbered-train.tfrecord-00000 is damaged after 1 whole',
    ),
    (
        '--dataset=short',
        'short/numbered-train.tfrecord-00000 has 0 episodes, but',
    ),
)
_VALIDATE = (
    ('', '--dataset must have a value'),
    ('--dataset=data --limit=0', 'is not a positive integer'),
    ('--dataset=data --validation=loose', 'one of <strict|tf_agents>'),
    ('--dataset=data --nan=x', 'one of <report|invalid>'),
    ('--dataset=data --limt=3', 'Did you mean --limit or'),
    (
        '--dataset=data --gin_binding="ConversionRules.nam = 1"',
        'Did you mean nan?',
    ),
    (_FAILED, ''),
    ('--dataset=./dota', 'Did you mean data?'),
    ('--dataset=data --split=trian', 'Did you mean train?'),
)
_RECORD_EPISODES = (
    ('', '--directory must have a value'),
    ('--directory=', '--directory must not be empty'),
    ('--directory=o --num_episodes=0', 'is not a positive integer'),
    ('--directory=o --max_steps=0', 'is not a positive integer'),
    ('--directory=o --randomness=2', 'in the range [0.0, 1.0]'),
    ('--directory=o --randomness=nan', 'must be a finite number'),
    ('--directory=o --randomness=0.5', '--randomness needs a --policy'),
    ('--directory=o --environmet=x', 'Did you mean --environment?'),
    (_FAILED, ''),
    ('--directory=full', 'is not empty'),
    ('--directory=file', 'is a file'),
    ('--directory=o --split="a b"', 'name of a split must be'),
)
_VALIDATE_CONFIGS = (
    ('--data=data', '--data needs --config'),
    ('--confg=x', 'Did you mean --config?'),
    (_FAILED, ''),
    ('--config=brigde', 'Did you mean bridge'),
    ('--config=bridge --data=dota', 'dota is neither a directory'),
)
_BUILD_INDEX = (
    ('', '--dataset must have a value'),
    ('--dataset=data', '--index_dir must have a value'),
    ('--dataset=data --index_dir=', '--index_dir must not be empty'),
    ('--dataset=data --index_dir=i --num_workers=0', 'not a positive integer'),
    ('--dataset=data --index_dir=i --format=npy', 'Did you mean npz?'),
    (
        '--dataset=data --index_dir=i --gin_binding="load_zarr.leave_out = []"',
        "is for options of the format's reader",
    ),
)
_PROGRAMS = {
    'convert': _CONVERT,
    'serve': _SERVE,
    'status': _STATUS,
    'describe': _DESCRIBE,
    'validate': _VALIDATE,
    'record_episodes': _RECORD_EPISODES,
    'validate_configs': _VALIDATE_CONFIGS,
    'build_index': _BUILD_INDEX,
}


class BadCommandsTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.folder = folder.name
    data_sets.numbered(os.path.join(cls.folder, 'data'), [3, 4, 2])
    torn = data_sets.numbered(os.path.join(cls.folder, 'torn'), [3, 4])
    (file,) = data_sets.files_of(torn)
    os.truncate(file, os.path.getsize(file) - 5)
    short = data_sets.numbered(os.path.join(cls.folder, 'short'), [3, 4])
    (file,) = data_sets.files_of(short)
    os.truncate(file, 0)
    os.mkdir(os.path.join(cls.folder, 'empty'))
    os.mkdir(os.path.join(cls.folder, 'full'))
    for name in 'file', 'full/mine':
      with open(os.path.join(cls.folder, name), 'w', encoding='utf-8') as f:
        f.write('mine\n')

  @parameterized.parameters(*_PROGRAMS)
  @pytest.mark.long
  def test_one_line_and_an_exit_code(self, program):
    before = sorted(os.listdir(self.folder))
    code = 2
    expected = []
    for command, message in _PROGRAMS[program]:
      if command is _FAILED:
        code = 1
      else:
        expected.append((command, message, code))
    results = in_process.run(
        program,
        [shlex.split(command) for command, _, _ in expected],
        BUILD_WORKING_DIRECTORY=self.folder,
    )
    for (command, message, code), result in zip(expected, results):
      with self.subTest(command):
        self.assertEqual(result.code, code, result.stderr + result.stdout)
        lines = result.stderr.strip().splitlines()
        self.assertIn(message, result.stderr)
        self.assertNotIn('Traceback', result.stderr)
        self.assertNotIn('{{', result.stderr)
        if code == 2:
          self.assertLen(lines, 1)
          self.assertEndsWith(lines[0], ' See --help.')
    # Nothing is left behind.
    self.assertEqual(sorted(os.listdir(self.folder)), before)


if __name__ == '__main__':
  absltest.main()
