"""Transforms of robot actions: rotations, grippers, and relabeling by states.

Configs name them without a module, as in `@BinarizeGripper()`.
"""

from rlds2reverb.transforms.robotics.actions import ActionsFromStates
from rlds2reverb.transforms.robotics.actions import ActionsFromWaypoints
from rlds2reverb.transforms.robotics.actions import BinarizeGripper
from rlds2reverb.transforms.robotics.actions import InvertGripper
from rlds2reverb.transforms.robotics.actions import MotionsFromPoses
from rlds2reverb.transforms.robotics.actions import RelativeToAbsoluteGripper
from rlds2reverb.transforms.robotics.rotations import ConvertRotation
