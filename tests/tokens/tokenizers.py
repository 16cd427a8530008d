"""Small tokenizers for tests, which map each word to an id."""

import tensorflow as tf

WORDS = ('.', 'a', 'cat', 'is', 'it', 'not', 'so', 'this', 'yes')


def by_words(strings: tf.Tensor) -> tf.RaggedTensor:
  """Returns the indices of words in `WORDS`, in graph code."""
  table = tf.lookup.StaticHashTable(
      tf.lookup.KeyValueTensorInitializer(
          tf.constant(WORDS), tf.range(len(WORDS))
      ),
      -1,
  )
  words = tf.strings.split(strings)
  return words.with_values(table.lookup(words.values))


def by_letters(texts: list[str]) -> list[list[int]]:
  """Returns an id for each word, computed from its letters in Python."""
  return [
      [sum(map(ord, word)) % 97 + 1 for word in text.split()] for text in texts
  ]
