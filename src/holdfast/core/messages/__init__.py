"""What a message to people says, and how each channel takes it. Pure: nothing is sent here."""
