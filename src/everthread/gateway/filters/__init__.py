"""The gateway's features, one file each. `factory/gateways.py` lists them."""
