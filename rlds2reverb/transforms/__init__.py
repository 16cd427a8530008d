"""Transforms and filters of entire episodes, and images for training.

Most transforms have an inverse, for the actions of a policy that was trained on
transformed data. Images are decoded late, on the frames that are used.
Transforms of robot actions are in `transforms.robotics`.
"""

from rlds2reverb.episodes import tf_private
from rlds2reverb.fields.configs import load_transforms
from rlds2reverb.transforms import robotics
from rlds2reverb.transforms.applying import Compose
from rlds2reverb.transforms.applying import transform_episodes
from rlds2reverb.transforms.base import EpisodeFilter
from rlds2reverb.transforms.base import EpisodeRows
from rlds2reverb.transforms.base import EpisodeTransform
from rlds2reverb.transforms.fields import ClipField
from rlds2reverb.transforms.fields import PadField
from rlds2reverb.transforms.fields import RenameFields
from rlds2reverb.transforms.fields import SelectFields
from rlds2reverb.transforms.filters import DropEnd
from rlds2reverb.transforms.filters import DropNoOps
from rlds2reverb.transforms.filters import FrameSkip
from rlds2reverb.transforms.filters import KeepEpisodes
from rlds2reverb.transforms.goals import draw_goals_from_other_episodes
from rlds2reverb.transforms.goals import RelabelGoals
from rlds2reverb.transforms.images import augment_images
from rlds2reverb.transforms.images import decode_images
from rlds2reverb.transforms.images import decode_video_frames
from rlds2reverb.transforms.images import drop_images
from rlds2reverb.transforms.images import FitImages
from rlds2reverb.transforms.normalization import normalize_by_statistics
from rlds2reverb.transforms.normalization import NormalizeField
from rlds2reverb.transforms.normalization import ScaleReward
from rlds2reverb.transforms.tasks import AddTimestep
from rlds2reverb.transforms.tasks import DrawInstruction
from rlds2reverb.transforms.tasks import DropConditioning
from rlds2reverb.transforms.tasks import MarkActions
from rlds2reverb.transforms.tasks import MarkPadding

tf_private.mark_package(__name__)
