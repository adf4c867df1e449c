"""How dead letters get back to work: which, by whom, each once."""
