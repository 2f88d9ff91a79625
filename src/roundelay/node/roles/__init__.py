"""Groups whose members have roles that a file gives them."""
