"""Any box that a transport reaches: our bundle is on it, and its entries do there what `local` does here."""
