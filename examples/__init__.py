# Before Gym, which then prints nothing.
import rlds2reverb
