"""Share groups: what they are configured to, who is in them, who may do what with them, what each member works on."""
