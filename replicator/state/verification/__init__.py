"""What is known from comparisons: outcomes come in, proofs, alarms and ranges that remain go out."""
