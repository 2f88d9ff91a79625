"""Finding what is wrong with a journal, and putting it right."""
