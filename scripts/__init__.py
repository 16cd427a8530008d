"""The programs of rlds2reverb, and the entry points of its console commands.

Each function runs its program as `__main__`, so that `--help` shows its flags.
"""

import runpy


def _run(program: str) -> None:
  runpy.run_module(f'{__name__}.{program}', run_name='__main__', alter_sys=True)


def run_build_index() -> None:
  _run('build_index')


def run_convert() -> None:
  _run('convert')


def run_describe() -> None:
  _run('describe')


def run_record_episodes() -> None:
  _run('record_episodes')


def run_serve() -> None:
  _run('serve')


def run_status() -> None:
  _run('status')


def run_validate() -> None:
  _run('validate')


def run_validate_configs() -> None:
  _run('validate_configs')
