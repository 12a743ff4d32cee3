"""Say in one line what this room is for."""
