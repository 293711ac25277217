"""Episodes as tokens: templates, buffers, generation backends, and the driver that plays them."""
