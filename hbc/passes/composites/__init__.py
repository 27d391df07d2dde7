"""How composites become quantised ops with i16 tensors between them, and how far the result may be off (D9)."""
