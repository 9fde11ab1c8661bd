"""The names of gradhomog's networks."""

IMAGES = ("conv4", "conv6", "resnet10", "resnet12", "resnet18")
NETWORKS = (*IMAGES, "mlp")
