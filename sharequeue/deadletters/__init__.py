"""Dead letters: their content, their writing to the dead-letter topic exactly once, their reading and redrive."""
