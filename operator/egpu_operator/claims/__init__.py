"""ElasticGPUClaims: class filled in, slice found or made, bound, protected, reclaimed."""
