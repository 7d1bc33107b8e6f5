"""What rented places cost, from what the desk knows alone: no place is asked (docs/cost.md)."""
