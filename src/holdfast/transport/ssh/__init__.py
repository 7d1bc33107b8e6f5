"""A box behind OpenSSH's client, with the user's own configuration: aliases, jump hosts, agents and keys."""
