"""EGPUClasses: kept while claims or slices use them."""
