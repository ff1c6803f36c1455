"""What a conversion did, as an in-toto statement that others check, signed with a key or not."""
