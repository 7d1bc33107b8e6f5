"""Messages to people: handed to each channel once, bounded, with what went wrong as the answer."""
