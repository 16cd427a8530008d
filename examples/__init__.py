# Silences Gym's deprecation notice, so it is imported first.
import rlds2reverb
