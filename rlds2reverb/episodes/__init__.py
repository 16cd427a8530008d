"""In: RLDS episodes, their step fields, and blocks of their steps."""
