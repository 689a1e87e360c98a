"""Changes by change data capture: change tables come in, pulls of Arrow columns with positions and marks go out."""
