"""What may enter the cluster: pods with claims are completed, hand-made ones refused with advice.

``gather`` is the only part that reads the API server; ``decide`` is pure; ``review`` knows the AdmissionReview format.
What one object can say about itself stands as CEL rules in the custom resource definitions, not here.
"""
