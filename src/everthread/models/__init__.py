"""How a model is reached: the official clients, behind one protocol, and wrappers around them."""
