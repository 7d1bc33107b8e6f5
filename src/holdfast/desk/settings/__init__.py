"""The files of this account's own settings: how they are read, and changed without losing what else is in them."""
