"""The parts of `everthread chat`: what is shown, what is typed, and the talk between them."""
