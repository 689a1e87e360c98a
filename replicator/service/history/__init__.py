"""`history`: the changes of definitions that a state store has come in, a document with what became of each goes out."""
