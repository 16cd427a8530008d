"""Text for RL on language models: each step of an RLDS episode is a token.

Texts come from any data set of strings, token ids from your own tokenizer.
"""

from rlds2reverb.episodes import tf_private
from rlds2reverb.tokens.episodes import convert_texts_to_episodes
from rlds2reverb.tokens.episodes import make_token_episode
from rlds2reverb.tokens.episodes import update_kl_coefficient
from rlds2reverb.tokens.texts import convert_texts_to_batches
from rlds2reverb.tokens.texts import convert_texts_to_pairs
from rlds2reverb.tokens.texts import make_python_tokenizer
from rlds2reverb.tokens.texts import pad_tokens

tf_private.mark_package(__name__)
