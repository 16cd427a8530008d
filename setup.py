"""Package definition, with dependency versions that are tested together."""

import pathlib
import runpy
import shutil

import setuptools
from setuptools.command import build_py

_PYTHON_3_12 = 'python_version == "3.12"'
_PYTHON_3_13 = 'python_version >= "3.13"'
_WITH_NUMPY_1 = 'python_version < "3.13"'
_WITH_REVERB = 'python_version < "3.12"'
_WITHOUT_REVERB = 'python_version >= "3.12"'

_FOLDER = pathlib.Path(__file__).parent


class _BuildPy(build_py.build_py):
  """Builds without the modules that an older version left in build/lib."""

  def run(self):
    shutil.rmtree(self.build_lib, ignore_errors=True)
    super().run()


setuptools.setup(
    name='rlds2reverb',
    version=runpy.run_path(str(_FOLDER / 'rlds2reverb' / 'version.py'))[
        '__version__'
    ],
    description=(
        'Turns recorded reinforcement-learning data into training batches for'
        ' TF-Agents, PyTorch and JAX'
    ),
    long_description=(_FOLDER / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    author='The rlds2reverb authors',
    license='Apache-2.0',
    license_files=['LICENSE'],
    keywords='reinforcement-learning offline-rl rlds reverb tf-agents',
    classifiers=[
        'Development Status :: 4 - Beta',
        'Intended Audience :: Science/Research',
        'Operating System :: POSIX :: Linux',
        'Programming Language :: Python :: 3',
        'Programming Language :: Python :: 3.10',
        'Programming Language :: Python :: 3.11',
        'Programming Language :: Python :: 3.12',
        'Programming Language :: Python :: 3.13',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
        'Typing :: Typed',
    ],
    packages=[
        *setuptools.find_packages(include=['rlds2reverb', 'rlds2reverb.*']),
        'rlds2reverb.configs',
        'rlds2reverb.scripts',
    ],
    package_dir={
        'rlds2reverb.configs': 'configs',
        'rlds2reverb.scripts': 'scripts',
    },
    package_data={
        'rlds2reverb': ['py.typed'],
        'rlds2reverb.jobs.descriptions': ['*.css', '*.html', '*.js'],
        'rlds2reverb.replay': ['*.binpb'],
        'rlds2reverb.configs': [
            '*.gin',
            'features/*/*.json',
            'features/*/*/*.json',
            'mixtures/*.gin',
            'training/*.gin',
        ],
    },
    entry_points={
        'console_scripts': [
            f'rlds2reverb-{program.replace("_", "-")} ='
            f' rlds2reverb.scripts:run_{program}'
            for program in (
                'build_index',
                'convert',
                'describe',
                'record_episodes',
                'serve',
                'status',
                'validate',
                'validate_configs',
            )
        ],
    },
    cmdclass={'build_py': _BuildPy},
    python_requires='>=3.10,<3.14',
    install_requires=[
        'absl-py>=1.4',
        # dm-reverb 0.14.0, the last release, is compiled against TensorFlow
        # 2.15, and TF-Agents 0.19.0 is the release for both. Python 3.12 and
        # 3.13 have neither, and go without Reverb.
        f'tensorflow==2.15.1; {_WITH_REVERB}',
        f'tensorflow==2.16.2; {_PYTHON_3_12}',
        f'tensorflow==2.21.0; {_PYTHON_3_13}',
        f'dm-reverb==0.14.0; {_WITH_REVERB}',
        f'tf-agents==0.19.0; {_WITH_REVERB}',
        # TF-Agents 0.19.0 runs on Python 3.12, but requires packages that do
        # not. So it is installed with `--no-deps`, and these are its imports.
        f'cloudpickle; {_WITHOUT_REVERB}',
        f'pillow; {_WITHOUT_REVERB}',
        f'pygame>=2.5; {_WITHOUT_REVERB}',
        f'setuptools; {_WITHOUT_REVERB}',  # It has the module distutils.
        f'six; {_WITHOUT_REVERB}',
        f'tensorflow-probability==0.24.0; {_PYTHON_3_12}',
        f'tensorflow-probability==0.25.0; {_PYTHON_3_13}',
        f'tf-keras==2.16.0; {_PYTHON_3_12}',
        f'tf-keras==2.21.0; {_PYTHON_3_13}',
        f'typing-extensions; {_WITHOUT_REVERB}',
        f'wrapt; {_WITHOUT_REVERB}',
        # TF-Agents' own rlds_to_reverb imports rlds, which imports Reverb.
        f'rlds==0.1.8; {_WITH_REVERB}',
        'tensorflow-datasets==4.9.10',
        # Newer releases are generated for a protobuf that TensorFlow 2.15 and
        # 2.16 exclude, and break `import tensorflow_datasets`. pip does not
        # know this.
        f'tensorflow-metadata==1.17.3; {_WITH_NUMPY_1}',
        f'protobuf==4.25.9; {_WITH_NUMPY_1}',
        # tensorflow-datasets imports it to prepare a data set, but requires it
        # on Python 3.8 only.
        'importlib_resources',
        # Newer releases need NumPy 2, which TensorFlow 2.15 and 2.16 exclude.
        # pip does not know this either.
        f'pyarrow<26; {_WITH_NUMPY_1}',
        f'pyarrow; {_PYTHON_3_13}',
        f'numpy==1.26.4; {_WITH_NUMPY_1}',
        f'numpy>=2.1; {_PYTHON_3_13}',
        # Compiles the loops that sample from replay buffers. 0.61 is the first
        # release for Python 3.13, and works with NumPy 1.26.
        'numba>=0.61,<1',
        # Reverb's insert stream was tested with this release.
        f'grpcio==1.74.0; {_WITH_REVERB}',
        f'grpcio; {_WITHOUT_REVERB}',
        # For recording episodes. 1.1 brought the autoreset modes of vectorized
        # environments.
        'gymnasium>=1.1,<2',
        # TF-Agents 0.19.0 imports this release, for training.
        'gym==0.23.0',
        'dm-tree',
        'etils[epath]',
        f'gin-config; {_WITHOUT_REVERB}',  # TF-Agents brings it elsewhere.
        'tqdm',
    ],
    extras_require={
        'test': [
            'pytest',
            'pytest-xdist',
            'av',
            'distributed',
            'h5py',
            'jinja2',
            'msgpack',
            'prometheus_client',
            'pyyaml',
            'vl-convert-python',
            'zarr',
        ],
        # PyAV, for the videos of LeRobot data sets. It takes 120 MB.
        'video': ['av'],
        # For the pages of `describe`: templates, and Vega-Lite, which each page
        # contains. vl-convert takes 85 MB.
        'page': ['jinja2', 'vl-convert-python'],
        # For `formats.load` of Zarr.
        'zarr': ['zarr'],
        # For episodes that RLlib's new API stack has recorded.
        'rllib': ['msgpack'],
        # For the manual, `bash scripts/manual.sh`: Sphinx with Markdown pages,
        # and notebooks that are run when it is built. Newer releases of IPython
        # and Sphinx need a newer typing-extensions than TF-Agents requires.
        'docs': [
            'ipython<8.19',
            'myst-nb',
            'sphinx<8.2',
            'sphinx-book-theme',
            'sphinx-copybutton',
        ],
        # For GPUs: NVIDIA's libraries, of 2 to 4 GB.
        'gpu': [
            f'tensorflow[and-cuda]==2.15.1; {_WITH_REVERB}',
            f'tensorflow[and-cuda]==2.16.2; {_PYTHON_3_12}',
            f'tensorflow[and-cuda]==2.21.0; {_PYTHON_3_13}',
        ],
        # For training on `random_access`. On Python 3.10 and 3.11 TF-Agents
        # requires an old typing-extensions, with which pip chooses PyTorch 2.1.
        # All work together with a newer one: see requirements/frameworks.txt.
        'torch': ['torch'],
        'jax': ['jax', 'grain'],
        # `benchmarks.replay` is compared with these replay buffers if they are
        # installed.
        'replay-peers': ['cpprb', 'flashbax', 'torchrl'],
        # For `convert --dask_scheduler`.
        'dask': ['distributed'],
        # For `serve --metrics_port`.
        'metrics': ['prometheus_client'],
        # For `convert --runner`. It takes 165 MB, and requires an older pillow.
        'beam': ['apache-beam==2.77.0'],
        # To record from Atari, the DeepMind Control Suite and
        # Gymnasium-Robotics, on Python 3.10 and 3.11: 370 MB.
        'recording': [
            'ale-py==0.12.1',
            'dm_control==1.0.50',
            'gymnasium[mujoco]==1.3.0',
            'gymnasium-robotics==1.4.2',
            # dm_control 1.0.50 does not work with MuJoCo 4. What
            # `python -m tests.record_environments` records depends on the
            # version, to the last bit.
            'mujoco==3.17.0',
        ],
    },
)
