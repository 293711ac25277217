"""WebShop: adapter, engine and data preparation."""
