"""Share groups: their configs, their members, their ACLs and tokens, and the assignment of each member."""
