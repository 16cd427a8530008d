"""Installs rlds2reverb, and what it needs in versions that work together."""

import pathlib

import setuptools

setuptools.setup(
    name='rlds2reverb',
    version='0.1.0',
    description='Offline reinforcement-learning data into training: RLDS to Reverb',
    long_description=pathlib.Path(__file__)
    .with_name('README.md')
    .read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
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
        'rlds2reverb.jobs.descriptions': ['*.css', '*.js'],
        'rlds2reverb.configs': [
            '*.gin',
            'features/*/*.json',
            'training/*.gin',
        ],
    },
    entry_points={
        'console_scripts': [
            f'rlds2reverb-{program.replace("_", "-")} ='
            f' rlds2reverb.scripts:run_{program}'
            for program in (
                'convert',
                'describe',
                'record_episodes',
                'serve',
                'train',
                'validate',
                'validate_configs',
            )
        ],
    },
    python_requires='>=3.10,<3.12',
    install_requires=[
        'absl-py>=1.4',
        # dm-reverb 0.14.0, the last release, is compiled against TensorFlow
        # 2.15, and TF-Agents 0.19.0 is the release for both.
        'tensorflow==2.15.1',
        'dm-reverb==0.14.0',
        'tf-agents==0.19.0',
        'rlds==0.1.8',
        'tensorflow-datasets==4.9.10',
        # Newer ones are generated for a protobuf that TensorFlow 2.15 excludes,
        # and break `import tensorflow_datasets`. pip does not see it.
        'tensorflow-metadata==1.17.3',
        'protobuf==4.25.9',
        # What tensorflow-datasets prepares a data set with, and asks for on
        # Python 3.8 only.
        'importlib_resources',
        # Newer ones need NumPy 2, which TensorFlow 2.15 excludes. pip does not
        # see that either.
        'pyarrow<26',
        'numpy==1.26.4',
        # The release that was tried with Reverb's insert stream.
        'grpcio==1.74.0',
        # The gym that TF-Agents 0.19.0 knows, for recording episodes.
        'gym==0.23.0',
        'dm-tree',
        'etils[epath]',
        'h5py',
        'gin-config',
        # The pictures of `describe`.
        'matplotlib',
        'tqdm',
    ],
    extras_require={
        'test': ['pytest', 'pytest-xdist', 'av'],
        # PyAV, for the videos of LeRobot data sets. It takes 120 MB.
        'video': ['av'],
        # For `convert --runner`. It takes 165 MB, and an older pillow.
        'beam': ['apache-beam==2.77.0'],
        # For `python -m tests.record_environments`, on Python 3.10 and 3.11. The
        # tests read what it has recorded, so they do without these 370 MB.
        'recording': [
            'ale-py==0.12.1',
            'dm_control==1.0.50',
            'gymnasium[mujoco]==1.3.0',
            # What the recorded numbers depend on, to the last bit.
            'mujoco==3.17.0',
        ],
    },
)
