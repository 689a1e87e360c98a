"""Records of comparisons: outcomes come in; proofs, alarms and the remaining ranges go out."""
