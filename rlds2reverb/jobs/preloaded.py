"""Imports what a worker needs, in the process that workers are forked from."""

from rlds2reverb.jobs import quiet

quiet.quiet_logs()

from rlds2reverb.jobs import workers  # noqa: E402,F401
