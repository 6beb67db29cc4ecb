"""ElasticGPUs: booked, told, asked back from ended pods, given back at the end."""
