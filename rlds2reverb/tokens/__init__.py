"""Text for reinforcement learning: each step of an RLDS episode is a token.

Strings come from any data set, and tokens from your own tokenizer.
"""

from rlds2reverb.tokens.batches import convert_texts_to_batches
from rlds2reverb.tokens.batches import convert_texts_to_pairs
from rlds2reverb.tokens.batches import pad_tokens
from rlds2reverb.tokens.coefficients import adaptive_kl_coefficient
from rlds2reverb.tokens.token_episodes import convert_texts_to_episodes
from rlds2reverb.tokens.token_episodes import make_token_episode
from rlds2reverb.tokens.tokenizing import in_python
