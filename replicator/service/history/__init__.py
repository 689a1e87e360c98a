"""`history`: takes the changes of definitions in a state store; returns a document with the outcome of each."""
