"""What `flatc` makes of `schema.fbs`. Not edited by hand: a test regenerates it and compares."""
