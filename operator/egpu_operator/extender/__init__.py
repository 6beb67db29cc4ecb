"""What kube-scheduler asks: filter, prioritize, bind."""
